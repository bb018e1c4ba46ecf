"""Model names with slashes in paths, written as `/` or as `%2F`, which servers decode before anybody sees the path."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from falcon.asgi import Request, Response

_PATH = re.compile(
    r"/v2/models/(?P<model>.+?)(?P<rest>(/versions/[^/]+)?(/(generate|generate_stream|infer|ready))?)", re.DOTALL
)
"""What comes after the name is all that routes know; the name is whatever comes before."""


class ModelPaths:
    """Lets routes have the whole name as one segment, `{model}`."""

    async def process_request(self, request: Request, response: Response) -> None:
        found = _PATH.fullmatch(request.path)
        if found is not None:
            request.path = f"/v2/models/{quote(found['model'], safe='')}{found['rest']}"

    async def process_resource(
        self, request: Request, response: Response, resource: object, params: dict[str, Any]
    ) -> None:
        if "model" in params and request.path.startswith("/v2/models/"):
            params["model"] = unquote(params["model"])
