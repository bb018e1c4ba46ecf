"""Where the contracts contradict themselves, each other, or the servers they describe; and what is answered there.

Everything the suite does not hold to the letter is listed here with its reason. An entry that is not needed any more fails
the suite.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from tests.contract.contracts import Schema, components, ref


@dataclass(frozen=True)
class Instead:
    """The schema that holds, and why it is another one."""

    schema: Schema
    reason: str


_TGI = ("tgi-1.3.4", "tgi-2.2.1")

RESPONSES: dict[tuple[str, int, str], Instead] = {
    **{
        (f"{contract} POST /", 200, "application/json"): Instead(
            {"type": "array", "items": ref("GenerateResponse"), "minItems": 1, "maxItems": 1},
            "TGI sends an array of one at `/`, which its clients index; the contract shows its element",
        )
        for contract in _TGI
    },
    ("tgi-1.3.4 POST /v1/chat/completions", 200, "application/json"): Instead(
        ref("ChatCompletion"), "the contract shows a chunk of a stream; its servers send this component of it"
    ),
}
"""(operation, status, media type) -> the schema of the answer."""


def _nullable(contract: str, component: str, *places: str) -> Schema:
    """The component, with null allowed at some places (`details.tokens[].logprob`)."""
    schema = copy.deepcopy(components(contract)[component])
    for place in places:
        *way, last = place.replace("[]", ".items").split(".")
        inner = schema
        for step in way:
            inner = inner["items"] if step == "items" else inner["properties"][step]
        inner["properties"][last] = {"anyOf": [inner["properties"][last], {"type": "null"}]}
    return schema


def _with(schema: Schema, **properties: Schema) -> Schema:
    """The schema with other properties of these names."""
    return {**schema, "properties": {**schema["properties"], **properties}}


_LOGPROBS: Schema = {
    "anyOf": [
        {
            "type": "object",
            "required": ["tokens", "token_logprobs", "top_logprobs", "text_offset"],
            "properties": {
                "tokens": {"type": "array", "items": {"type": "string"}},
                "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
                "top_logprobs": {"type": "array", "items": {"type": ["object", "null"]}},
                "text_offset": {"type": "array", "items": {"type": "integer"}},
            },
        },
        {"type": "null"},
    ]
}
_NULLS = "TGI's schemas, which the same answers fit, have null here: for what is not known, or not yet"

_OPENAI = "clients of OpenAI's API, whose types are others here, break on TGI's shape"

_LEFT_OUT = "the contract refers to it and leaves it out"

COMPONENTS: dict[tuple[str, str], Instead] = {
    ("tgi-1.3.4", "ChatCompletionComplete"): Instead(
        {
            "type": "object",
            "required": ["index", "message", "finish_reason"],
            "properties": {
                "index": {"type": "integer", "minimum": 0},
                "message": {
                    "type": "object",
                    "required": ["role", "content"],
                    "properties": {"role": {"type": "string"}, "content": {"type": ["string", "null"]}},
                },
                "finish_reason": {"type": "string"},
            },
        },
        _LEFT_OUT,
    ),
    ("tgi-1.3.4", "Usage"): Instead(components("tgi-2.2.1")["Usage"], _LEFT_OUT),
    ("tgi-2.2.1", "ChatCompletionDelta"): Instead(
        {
            "type": "object",
            "properties": {
                "role": {"const": "assistant"},
                "content": {"type": ["string", "null"]},
                "tool_calls": {"type": "array", "items": ref("DeltaToolCall"), "minItems": 1},
            },
            "additionalProperties": False,
        },
        f"{_OPENAI}: the role comes once, and calls are in an array",
    ),
    ("tgi-2.2.1", "DeltaToolCall"): Instead(
        {**components("tgi-2.2.1")["DeltaToolCall"], "required": ["index", "function"]},
        f"{_OPENAI}: a call's id and type come once",
    ),
    ("tgi-2.2.1", "Chunk"): Instead(
        _with(
            components("tgi-2.2.1")["Chunk"],
            choices={
                "type": "array",
                "items": _with(
                    components("tgi-2.2.1")["CompletionComplete"],
                    finish_reason={"type": ["string", "null"]},
                    logprobs=_LOGPROBS,
                ),
            },
        ),
        f"{_OPENAI}: the finish reason comes once, and log probabilities come with their tokens",
    ),
    ("tgi-2.2.1", "CompletionComplete"): Instead(
        _with(components("tgi-2.2.1")["CompletionComplete"], logprobs=_LOGPROBS),
        f"{_OPENAI}: log probabilities come with their tokens",
    ),
    ("hf-text-generation", "CompletionStreamResponse"): Instead(
        _nullable("hf-text-generation", "CompletionStreamResponse", "choices[].finish_reason"),
        f"{_OPENAI}: the finish reason is null before the end",
    ),
    ("hf-text-generation", "GenerateResponse"): Instead(
        _nullable("hf-text-generation", "GenerateResponse", "details.seed", "details.prefill[].logprob"), _NULLS
    ),
    ("hf-text-generation", "StreamResponse"): Instead(
        _nullable("hf-text-generation", "StreamResponse", "details.seed", "details", "generated_text"), _NULLS
    ),
    ("open-inference-generate", "StreamDetails"): Instead(
        _nullable("open-inference-generate", "StreamDetails", "finish_reason"),
        "every event has details, and no sequence knows how it ends before its last token",
    ),
}
"""(contract, component) -> the component's schema."""

UNUSED: dict[str, dict[str, str]] = {
    "tgi-1.3.4": dict.fromkeys(
        ("ChatCompletionChunk", "ChatCompletionChoice", "ChatCompletionDelta"),
        "part of streamed chats, which this contract does not describe",
    ),
    "tgi-2.2.1": dict.fromkeys(
        ("Completion", "ToolCallDelta"), "part of an alternative that no operation has, or that OpenAI's shape replaces"
    ),
    "hf-text-generation": dict.fromkeys(("CompletionRequest_2", "Usage_2"), "nothing refers to it"),
}
"""contract -> component -> why no request and no answer has it."""

_INCOMPLETE = "a stream of tokens that ends without an end: the service takes it up again elsewhere instead"

NEVER_ANSWERED: dict[tuple[str, int], str] = {
    **{
        (f"{contract} POST {path}", 500): _INCOMPLETE
        for contract in _TGI
        for path in ("/", "/generate", "/generate_stream", "/v1/chat/completions")
    },
    ("tgi-2.2.1 POST /v1/completions", 500): _INCOMPLETE,
    **{
        (f"open-inference-generate POST /v2/models/{{MODEL_NAME}}/versions/{{MODEL_VERSION}}/{name}", 500): _INCOMPLETE
        for name in ("generate", "generate_stream")
    },
    **{
        (f"{contract} POST /tokenize", 404): "no tokenizer: the service does not start without one" for contract in _TGI
    },
}
"""(operation, status) -> why a server in order never answers it."""

_NO_COMMIT = "the scripted model has no commit"
_NO_IMAGE = "no container image"

NEVER_SEEN: dict[str, dict[str, str]] = {
    contract: {"Info.model_sha": _NO_COMMIT, "Info.sha": _NO_IMAGE, "Info.docker_label": _NO_IMAGE} for contract in _TGI
}
NEVER_SEEN["tgi-2.2.1"]["FunctionDefinition.description"] = "tools have it; calls, which share its schema, do not"
"""contract -> part of an answer -> why no answer has it."""

_NO_PICTURES = "models of text refuse pictures"

NEVER_TAKEN: dict[str, dict[str, str]] = {
    "tgi-2.2.1": {
        "GenerateParameters.adapter_id": "the scripted model has no adapters",
        "MessageChunk.image_url": _NO_PICTURES,
        "MessageChunk.type=image_url": _NO_PICTURES,
        "Url.url": _NO_PICTURES,
        "CompletionRequest.suffix": "the scripted model's tokenizer has no tokens for infilling",
    }
}
"""contract -> part of a request -> why no accepted request has it."""

_SERVERS_DO = "TGI's schema forbids it and TGI's servers take it"

BREACHES_TAKEN: dict[tuple[str, str, str], str] = {
    **{
        (path, f"parameters.{field}", kind): _SERVERS_DO
        for path in ("/", "/generate", "/generate_stream")
        for field, kind in (
            ("best_of", "exclusiveMinimum 0"),
            ("frequency_penalty", "exclusiveMinimum -2"),
            ("seed", "exclusiveMinimum 0"),
            ("top_n_tokens", "exclusiveMinimum 0"),
        )
        if (path, field) != ("/generate_stream", "best_of")
    },
    ("/v1/chat/completions", "model", "missing"): "later contracts leave it out, and it means the default model",
    ("/v1/chat/completions", "seed", "minimum 0"): "OpenAI's seeds are signed",
    ("/v1/completions", "model", "missing"): "other contracts leave it out, and it means the default model",
    ("/v1/completions", "seed", "minimum 0"): "OpenAI's seeds are signed",
    ("/v1/completions", "temperature", "maximum 2"): "TGI's contracts, which have the same route, know no limit",
    ("/generate", "parameters.best_of", "minimum 1"): "0 is 1 to TGI's servers",
    **{
        (
            "/tokenize",
            f"parameters.{field}",
            kind,
        ): "only `inputs` matters to it, and no value of a parameter is looked at"
        for field, kind in (
            ("best_of", "exclusiveMinimum 0"),
            ("frequency_penalty", "exclusiveMinimum -2"),
            ("repetition_penalty", "exclusiveMinimum 0"),
            ("seed", "exclusiveMinimum 0"),
            ("stop", "maxItems"),
            ("temperature", "exclusiveMinimum 0"),
            ("top_k", "exclusiveMinimum 0"),
            ("top_n_tokens", "exclusiveMinimum 0"),
            ("top_p", "exclusiveMinimum 0"),
            ("top_p", "maximum 1"),
            ("typical_p", "exclusiveMinimum 0"),
            ("typical_p", "maximum 1"),
        )
    },
}
"""(path, field, kind of breach) -> why it is taken all the same."""
