"""The web application, wired."""

from __future__ import annotations

from falcon.asgi import App, Request, Response

from common.settings import Settings
from web.disconnect import ASGIApp, DisconnectWatch, Receive, Scope, Send
from web.drain import Drain
from web.errors import add_error_handlers
from web.middleware.api_key import ApiKeys
from web.middleware.cors import Cors
from web.middleware.draining import Draining
from web.middleware.known_methods import KnownMethods
from web.middleware.lifespan import Lifespan
from web.middleware.model_paths import ModelPaths
from web.middleware.request_id import RequestId
from web.plain_http import PlainHttp
from web.routes import add_routes
from web.server_spans import RouteNames, ServerSpans
from web.services import Services


class WebApplication:
    """An ASGI application and how it leaves, for the server that runs it."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self.drain = drain
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def create_app(settings: Settings) -> WebApplication:
    """Connects to Redis when the server sends `lifespan.startup`.

    Raises:
        ModelNotFound: the tokenizer's files are not there.
        ValueError: the limits do not fit the model, or the file of API keys is not right.
    """
    services = Services(settings)
    app: App[Request, Response] = App()
    app.add_middleware(Lifespan(services))
    if services.tracing is not None:
        app.add_middleware(RouteNames())
    app.add_middleware(RequestId())
    app.add_middleware(Cors(settings.cors_allow_origin))
    app.add_middleware(KnownMethods())
    app.add_middleware(ModelPaths())
    app.add_middleware(ApiKeys(services.api_keys, settings))
    app.add_middleware(Draining(services.drain))
    app.req_options.strip_url_path_trailing_slash = True
    add_error_handlers(app, settings)
    add_routes(app, services)
    watched: ASGIApp = DisconnectWatch(app, send_timeout=settings.stall_timeout)
    if services.tracing is not None:
        watched = ServerSpans(watched, services.tracing)
    return WebApplication(PlainHttp(watched), services.drain)
