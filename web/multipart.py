"""Forms (`multipart/form-data`), field by field as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from falcon import parse_header
from falcon.asgi import Request
from falcon.asgi.multipart import BodyPart, MultipartForm
from falcon.media.multipart import MultipartParseError, MultipartParseOptions

from common.errors import MalformedBody, UnsupportedMediaType
from web.body import body_pieces

CONTENT_TYPE = "multipart/form-data"
OVERHEAD_BYTES = 65_536
"""Of a form beside its file: names, boundaries and the values of other fields."""
_LONGEST_BOUNDARY = 70
"""Characters, by RFC 2046, section 5.1.1."""
_MOST_FIELDS = 32
_LONGEST_VALUE = 4096
"""Bytes of a field that is no file."""


class FormField:
    """One field; to be read before the next one is asked for."""

    def __init__(self, part: BodyPart, name: str, filename: str | None) -> None:
        self.name = name
        self.filename = filename
        """None where it is no file."""
        self._part = part

    async def text(self) -> str:
        """
        Raises:
            MalformedBody: too long, or not UTF-8.
        """
        with _translated():
            return (await self._part.get_data()).decode()

    async def chunks(self) -> AsyncIterator[bytes]:
        with _translated():
            async for chunk in self._part.stream:
                yield chunk


async def form_fields(request: Request, limit: int) -> AsyncIterator[FormField]:
    """The fields of a form, none of which is held; the form was sent to its end when this ends.

    Args:
        limit: bytes of the whole body.

    Raises:
        UnsupportedMediaType: it is no form.
        MalformedBody: a form that cannot be read.
        TgqError: see `web.body.body_pieces`.
    """
    kind, options = parse_header(request.content_type or "")
    if kind.lower() != CONTENT_TYPE:
        raise UnsupportedMediaType(f"Expected request with `Content-Type: {CONTENT_TYPE}`")
    boundary = options.get("boundary", "").encode()
    if not 1 <= len(boundary) <= _LONGEST_BOUNDARY:
        raise MalformedBody(f"The form's `boundary` must have 1 to {_LONGEST_BOUNDARY} characters")
    form = MultipartForm(body_pieces(request, limit), boundary, None, _options())  # type: ignore[arg-type]
    with _translated():
        async for part in form:
            if part.name is None:
                raise MalformedBody("A field of the form has no name")
            yield FormField(part, part.name, part.filename)


def _options() -> MultipartParseOptions:
    options = MultipartParseOptions()
    options.max_body_part_count = _MOST_FIELDS
    options.max_body_part_buffer_size = _LONGEST_VALUE
    return options


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MultipartParseError as error:
        raise MalformedBody(f"Failed to parse the form: {error.description}") from None
    except UnicodeError:
        raise MalformedBody("Failed to parse the form: a name or a value is not UTF-8") from None
