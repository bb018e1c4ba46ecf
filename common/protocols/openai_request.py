"""What clients of OpenAI's API say on any generation route: the fields that chat and completions share.

Fields of OpenAI's that cannot change an answer are taken and have no effect; those that would change it and that nothing
here carries out are refused, never ignored. Beyond OpenAI's: what TGI and other servers take on these routes.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from common.protocols.json_body import Float32, Int32, RequestModel, UInt32
from common.protocols.tgi_request import TokenKey


def shaped(reason: str) -> WrapValidator:
    """Says what a value of several possible types must be, once and for all of them."""

    def validate(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError("shape", reason) from None

    return WrapValidator(validate)


class StreamOptions(RequestModel):
    include_usage: bool = False
    """A last chunk tells the tokens of the whole request."""
    continuous_usage_stats: bool = False
    """Every chunk tells the tokens so far; not OpenAI's."""
    include_obfuscation: bool = False


class OpenAIRequest(RequestModel):
    """Fields as sent; ranges and defaults are applied by `common.protocols.openai_rules`."""

    refused: ClassVar[frozenset[str]] = frozenset()
    """Known fields that nothing here carries out."""

    model: str | None = None
    frequency_penalty: Float32 | None = None
    logit_bias: dict[TokenKey, Float32] = Field(default_factory=dict)
    max_tokens: UInt32 | None = None
    metadata: dict[str, Any] | None = None
    n: UInt32 | None = None
    presence_penalty: Float32 | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    service_tier: str | None = None
    stop: Annotated[str | list[str], shaped("must be a string or an array of strings")] = Field(default_factory=list)
    store: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Float32 | None = None
    top_p: Float32 | None = None
    user: str | None = None

    # not OpenAI's
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    min_p: Float32 | None = None
    repetition_penalty: Float32 | None = None
    stop_token_ids: list[UInt32] = Field(default_factory=list)
    top_k: Int32 | None = None
    typical_p: Float32 | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def ignored(self) -> list[str]:
        """Paths of the keys that have no effect, as the client spelled them."""
        options = self.stream_options
        return [
            *(self.model_extra or {}),
            *(f"stream_options.{name}" for name in (options.model_extra or {} if options else {})),
        ]
