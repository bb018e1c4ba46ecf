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
    """A LoRA adapter, by its name."""
    best_of: UInt32 | None = None
    """Generate so many sequences and answer the one whose tokens are likeliest; needs sampling."""
    decoder_input_details: bool = False
    """Tell the prompt's tokens as well; not on a stream."""
    details: bool = False
    """Tell the tokens, the finish reason and the seed."""
    do_sample: bool = False
    """Draw tokens instead of taking the likeliest. Any value of the warpers below that is not neutral does so too."""
    frequency_penalty: Float32 | None = None
    """Times a token's share of prompt and answer, subtracted from its score."""
    grammar: Grammar | None = None
    """What the answer must match."""
    ignore_eos: bool = False
    """End-of-text does not end the answer."""
    logit_bias: dict[TokenKey, Float32] = Field(default_factory=dict)
    """Token id to what is added to its score, -100 to 100."""
    max_new_tokens: UInt32 | None = None
    """An explicit null fills the context."""
    min_p: Float32 | None = None
    """Rule out tokens less likely than this share of the likeliest one."""
    presence_penalty: Float32 | None = None
    """Subtracted from the scores of tokens generated before."""
    repetition_penalty: Float32 | None = None
    """Divides the scores of tokens of prompt and answer; 1 is neutral."""
    return_full_text: bool | None = None
    """Put the prompt before the generated text."""
    seed: UInt64 | None = None
    """Makes a draw repeatable; drawn where it is not given, and told with the details."""
    stop: list[str] = Field(default_factory=list)
    """Strings that end the answer."""
    stop_token_ids: list[UInt32] = Field(default_factory=list)
    """Token ids that end the answer."""
    temperature: Float32 | None = None
    """1 is neutral."""
    top_k: Int32 | None = None
    """Draw from so many of the likeliest tokens."""
    top_n_tokens: UInt32 | None = None
    """Tell so many alternatives for each token."""
    top_p: Float32 | None = None
    """Draw from the likeliest tokens that come to this probability."""
    truncate: UInt64 | None = None
    """Keep so many tokens of the prompt's end."""
    typical_p: Float32 | None = None
    """Draw from the most typical tokens that come to this probability."""
    watermark: bool = False
    """Mark the answer so that it can be told from others."""

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


class TokenizeRequest(GenerateRequest):
    """Body of `/tokenize`, which may be the one that is to be generated from."""

    add_special_tokens: bool = True
    """Those that the tokenizer puts around a prompt; not TGI's, which always adds them."""


class CompatGenerateRequest(GenerateRequest):
    """Body of `POST /`: chooses between an answer and a stream."""

    stream: bool = False
