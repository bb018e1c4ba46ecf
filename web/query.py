"""Values of an address's query, where they have rules."""

from __future__ import annotations

from falcon.asgi import Request

from common.errors import BadRequest


def whole_number(request: Request, name: str, default: int, most: int) -> int:
    """A number from 1 to `most`.

    Raises:
        BadRequest: it is none.
    """
    given = request.get_param(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 9 and 1 <= int(given) <= most):
        raise BadRequest(f"`{name}` must be a whole number from 1 to {most}")
    return int(given)


def id_after(request: Request, prefix: str) -> str | None:
    """The id that a page begins behind.

    Raises:
        BadRequest: it is no id of this kind.
    """
    given: str | None = request.get_param("after")
    if given is not None and not (given.startswith(prefix) and len(given) <= 64):
        raise BadRequest(f"`after` must be an id that begins with '{prefix}'")
    return given
