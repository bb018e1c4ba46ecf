"""The API's documentation: `/openapi.json` for machines, `/docs` for people."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Any

import falcon
import msgspec
from falcon.asgi import Request, Response

from web.openapi.page import CONTENT_SECURITY_POLICY, render_page
from web.resources.resource import Resource, write_json
from web.services import Services


class Documentation:
    """The document in both forms, each made when it is first asked for."""

    def __init__(self, build: Callable[[], dict[str, Any]]) -> None:
        self._build = build

    @cached_property
    def document(self) -> dict[str, Any]:
        return self._build()

    @cached_property
    def json(self) -> bytes:
        return msgspec.json.encode(self.document)

    @cached_property
    def page(self) -> bytes:
        return render_page(self.document)


class DocumentationResource(Resource):
    def __init__(self, services: Services, documentation: Documentation) -> None:
        super().__init__(services)
        self.documentation = documentation


class OpenApi(DocumentationResource):
    async def on_get(self, request: Request, response: Response) -> None:
        # In a thread: the first one reads the sources' docstrings.
        write_json(response, await asyncio.to_thread(lambda: self.documentation.json))

    on_head = on_get


class Docs(DocumentationResource):
    async def on_get(self, request: Request, response: Response) -> None:
        response.content_type = falcon.MEDIA_HTML
        response.set_header("content-security-policy", CONTENT_SECURITY_POLICY)
        response.set_header("x-content-type-options", "nosniff")
        response.data = await asyncio.to_thread(lambda: self.documentation.page)

    on_head = on_get
