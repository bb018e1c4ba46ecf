"""Files of a page as they are sent: a browser keeps them, and asks each time whether they have changed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import falcon
from falcon.asgi import Request, Response
from msgspec import Struct

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(Struct, frozen=True):
    data: bytes
    media_type: str
    etag: str
    """Of the content, so all web processes and releases with the same file agree."""


def read_page_files(folder: Path) -> dict[str, PageFile]:
    """The files in a folder, by name; those of other kinds than a page is made of are left out."""
    return {
        path.name: PageFile(path.read_bytes(), _MEDIA_TYPES[path.suffix], sha256(path.read_bytes()).hexdigest()[:32])
        for path in sorted(folder.iterdir())
        if path.suffix in _MEDIA_TYPES
    }


def send_page_file(request: Request, response: Response, file: PageFile) -> None:
    """200 with the file, or 304 when the client has it."""
    response.etag = file.etag
    # Files name one another without versions: one that was kept unasked could belong to another release than the rest.
    response.cache_control = ["no-cache"]
    response.set_header("x-content-type-options", "nosniff")
    known = request.if_none_match or ()
    if any(tag == "*" or tag == file.etag for tag in known):
        response.status = falcon.HTTP_304
        return
    response.content_type = file.media_type
    response.data = file.data
