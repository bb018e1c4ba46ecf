"""What TGI clients say: bodies of `/`, `/generate`, `/generate_stream` and `/tokenize` (TGI 1.3 to 3.3).

Some parameters are not TGI's: `ignore_eos`, `logit_bias`, `min_p`, `presence_penalty`, `stop_token_ids`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from common.protocols.json_body import Float32, Int32, RequestModel, UInt32, UInt64

TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
"""A token id as a key of a JSON object."""


class Grammar(RequestModel):
    type: Literal["json", "json_object", "json_schema", "regex"]
    value: Any


class GenerateParameters(RequestModel):
    """Parameters as sent; ranges and defaults are applied by `common.validation`."""

    adapter_id: str | None = None
    best_of: UInt32 | None = None
    decoder_input_details: bool = False
    details: bool = False
    do_sample: bool = False
    frequency_penalty: Float32 | None = None
    grammar: Grammar | None = None
    ignore_eos: bool = False
    logit_bias: dict[TokenKey, Float32] = Field(default_factory=dict)
    max_new_tokens: UInt32 | None = None
    min_p: Float32 | None = None
    presence_penalty: Float32 | None = None
    repetition_penalty: Float32 | None = None
    return_full_text: bool | None = None
    seed: UInt64 | None = None
    stop: list[str] = Field(default_factory=list)
    stop_token_ids: list[UInt32] = Field(default_factory=list)
    temperature: Float32 | None = None
    top_k: Int32 | None = None
    top_n_tokens: UInt32 | None = None
    top_p: Float32 | None = None
    truncate: UInt64 | None = None
    typical_p: Float32 | None = None
    watermark: bool = False

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        # But for one: TGI takes an explicit null to mean no limit but the context.
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None or key == "max_new_tokens"}

    @property
    def fills_context(self) -> bool:
        """Whether `max_new_tokens` is an explicit null."""
        return self.max_new_tokens is None and "max_new_tokens" in self.model_fields_set


class GenerateRequest(RequestModel):
    inputs: str
    # Without any `parameters` TGI samples; with an empty object it is greedy.
    parameters: GenerateParameters = Field(default_factory=lambda: GenerateParameters(do_sample=True))

    @property
    def ignored(self) -> list[str]:
        """Paths of the keys that have no effect, as the client spelled them."""
        return [*(self.model_extra or {}), *(f"parameters.{name}" for name in self.parameters.model_extra or {})]


class CompatGenerateRequest(GenerateRequest):
    """Body of `POST /`: chooses between an answer and a stream."""

    stream: bool = False
