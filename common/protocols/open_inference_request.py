"""What clients of the Open Inference Protocol say: bodies of `generate` and `generate_stream`.

The parameters are the protocol's own and, as it allows others, those of TGI's routes.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from common.protocols import tgi_request
from common.protocols.json_body import Float32, RequestModel


class GenerateParameters(tgi_request.GenerateParameters):
    """Parameters as sent; ranges are the protocol's where it has one."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """20 unless given, here or by TGI's name for it."""
    temperature: Annotated[Float32, Field(ge=0)] | None = None
    top_p: Annotated[Float32, Field(ge=0, le=1)] | None = None


class GenerateRequest(RequestModel):
    text_input: str
    parameters: GenerateParameters = Field(default_factory=GenerateParameters)

    @property
    def ignored(self) -> list[str]:
        """Paths of the keys that have no effect, as the client spelled them."""
        return [*(self.model_extra or {}), *(f"parameters.{name}" for name in self.parameters.model_extra or {})]
