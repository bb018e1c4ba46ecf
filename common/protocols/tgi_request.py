"""What TGI clients say: bodies of `/`, `/generate`, `/generate_stream` and `/tokenize` (TGI 1.3 to 2.2)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from common.protocols.json_body import Float32, Int32, RequestModel, UInt32, UInt64


class Grammar(RequestModel):
    type: Literal["json", "json_object", "regex"]
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
    max_new_tokens: UInt32 | None = None
    repetition_penalty: Float32 | None = None
    return_full_text: bool | None = None
    seed: UInt64 | None = None
    stop: list[str] = Field(default_factory=list)
    temperature: Float32 | None = None
    top_k: Int32 | None = None
    top_n_tokens: UInt32 | None = None
    top_p: Float32 | None = None
    truncate: UInt64 | None = None
    typical_p: Float32 | None = None
    watermark: bool = False


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
