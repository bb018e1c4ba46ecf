"""`/playground`: a page to try the models on, its files, and what its strip of queue and workers shows."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import falcon
from falcon.asgi import Request, Response

from common.errors import RouteNotFound
from common.protocols.tgi_answer import encode
from web.page_files import PageFile, read_page_files, send_page_file
from web.playground_status import playground_status
from web.resources.resource import Resource, write_json

_FOLDER = Path(__file__).parents[1] / "pages" / "playground"
_PAGE = "index.html"
_HEADERS = {
    # Scripts, styles and answers of this service alone. Trusted types have no policy: text cannot become HTML, whatever a
    # script does.
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


@cache
def _files() -> dict[str, PageFile]:
    return read_page_files(_FOLDER)


class Playground(Resource):
    async def on_get(self, request: Request, response: Response) -> None:
        if request.scope["path"].endswith("/"):
            # The page's own links are relative to its address without the slash, whatever a proxy puts before it.
            response.status, response.location = falcon.HTTP_308, "../playground"
            return
        response.set_headers(_HEADERS)
        send_page_file(request, response, _files()[_PAGE])

    on_head = on_get


class PlaygroundFile(Resource):
    async def on_get(self, request: Request, response: Response, file: str) -> None:
        found = _files().get(file)
        if found is None or file == _PAGE:
            raise RouteNotFound
        send_page_file(request, response, found)

    on_head = on_get


class Status(Resource):
    protected = True

    async def on_get(self, request: Request, response: Response) -> None:
        response.cache_control = ["no-store"]
        write_json(response, encode(await playground_status(self.services, request.context.key)))

    on_head = on_get
