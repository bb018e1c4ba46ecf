"""Every error as a client sees it: a status, a body in its API's form, and the headers that go with it."""

from __future__ import annotations

from typing import Any

import falcon
import structlog
from falcon.asgi import App, Request, Response
from redis.exceptions import RedisError

from common.errors import (
    KeyLimited,
    MethodNotAllowed,
    Overloaded,
    RouteNotFound,
    ServiceUnavailable,
    TgqError,
    Unauthorized,
    Unhealthy,
    UnsupportedMediaType,
)
from common.protocols.dialects import ErrorForm, error_form
from common.settings import Settings
from web import sse
from web.content_coding import ACCEPTED

log = structlog.get_logger(__name__)

_MIN_RETRY_SECONDS = 1


def public_error(error: Exception) -> TgqError:
    """The error a client is told; what is not meant for it becomes one that says nothing."""
    match error:
        case KeyLimited():
            return error
        case Overloaded():
            return Overloaded(retry_after=error.retry_after)  # the text TGI's clients know, whatever was full
        case TgqError():
            return error
        case RedisError():
            return ServiceUnavailable()
        case falcon.HTTPMethodNotAllowed():
            return MethodNotAllowed()
        case falcon.HTTPNotFound():
            return RouteNotFound()
        case falcon.HTTPError():
            return _from_falcon(error)
        case _:
            return TgqError("Internal server error")


def write_error(request: Request, response: Response, error: TgqError, form: ErrorForm) -> None:
    response.status = error.status
    if isinstance(error, (Overloaded, ServiceUnavailable, Unhealthy)):
        response.set_header("retry-after", str(max(error.retry_after or 0, _MIN_RETRY_SECONDS)))
    if isinstance(error, Unauthorized):
        response.set_header("www-authenticate", "Bearer")
    if isinstance(error, UnsupportedMediaType):
        response.set_header("accept-encoding", ACCEPTED)
    if getattr(request.context, "stream", False) and wants_events_alone(request):
        response.content_type = sse.CONTENT_TYPE
        response.data = sse.frame(form(error), 0)
    else:
        response.content_type = falcon.MEDIA_JSON
        response.data = form(error)


def wants_events_alone(request: Request) -> bool:
    """Whether `Accept` names event streams and nothing else."""
    kinds = {part.partition(";")[0].strip().lower() for part in request.accept.split(",")}
    return kinds == {sse.CONTENT_TYPE}


def add_error_handlers(app: App[Request, Response], settings: Settings) -> None:
    async def handle(request: Request, response: Response, error: Exception, params: dict[str, Any]) -> None:
        told = public_error(error)
        if type(told) is TgqError and told.status >= 500:
            log.error("unexpected error", exc_info=error)
        if isinstance(error, falcon.HTTPError) and error.headers:
            response.set_headers(error.headers)  # for example Allow
        record = getattr(request.context, "record", None)
        if record is not None:
            record.failed(told)
        write_error(request, response, told, error_form(request.path, settings))

    app.add_error_handler(Exception, handle)
    app.add_error_handler(falcon.HTTPError, handle)


def _from_falcon(error: falcon.HTTPError) -> TgqError:
    told = TgqError(error.description or error.title or "Bad request")
    told.status = error.status_code
    told.error_type = "validation" if error.status_code < 500 else "internal"
    return told
