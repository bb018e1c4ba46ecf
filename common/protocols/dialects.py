"""In which form a request's errors are told: that of the API whose route it is."""

from __future__ import annotations

from collections.abc import Callable

from common.errors import TgqError
from common.protocols.open_inference_answer import error_body as open_inference_error
from common.protocols.openai_errors import error_body as openai_error
from common.protocols.tgi_answer import error_body as tgi_error
from common.settings import Settings

ErrorForm = Callable[[TgqError], bytes]
"""Makes the JSON of an error: a body, or the data of a stream's last event."""


def error_form(path: str, settings: Settings) -> ErrorForm:
    """By path, so that errors about the route itself (404, 405) have their API's form as well."""
    if path == "/v2" or path.startswith("/v2/"):
        return open_inference_error
    if settings.error_format == "openai" and (path == "/v1" or path.startswith("/v1/")):
        return openai_error
    return tgi_error
