"""The web application, wired."""

from __future__ import annotations

from falcon.asgi import App, Request, Response

from common.settings import Settings
from web.disconnect import ASGIApp, DisconnectWatch
from web.errors import add_error_handlers
from web.middleware.api_key import ApiKeys
from web.middleware.cors import Cors
from web.middleware.known_methods import KnownMethods
from web.middleware.lifespan import Lifespan
from web.middleware.model_paths import ModelPaths
from web.middleware.request_id import RequestId
from web.plain_http import PlainHttp
from web.routes import add_routes
from web.services import Services


def create_app(settings: Settings) -> ASGIApp:
    """An ASGI application; connects to Redis when the server sends `lifespan.startup`.

    Raises:
        ModelNotFound: the tokenizer's files are not there.
        ValueError: the limits do not fit the model, or the file of API keys is not right.
    """
    services = Services(settings)
    app: App[Request, Response] = App()
    app.add_middleware(Lifespan(services))
    app.add_middleware(RequestId())
    app.add_middleware(Cors(settings.cors_allow_origin))
    app.add_middleware(KnownMethods())
    app.add_middleware(ModelPaths())
    app.add_middleware(ApiKeys(services.api_keys, settings))
    app.req_options.strip_url_path_trailing_slash = True
    add_error_handlers(app, settings)
    add_routes(app, services)
    return PlainHttp(DisconnectWatch(app, send_timeout=settings.stall_timeout))
