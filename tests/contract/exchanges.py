"""The requests by which the contracts are walked: every field accepted at least once, every status a server in order has."""

from __future__ import annotations

import json
from typing import Any

from tests.contract.recording import Exchange, Node

EVENTS = "text/event-stream"
MALFORMED = b'{"inputs": '


def script(text: str | None = None, **fields: Any) -> str:
    """A prompt for the scripted model."""
    return f"<<script {json.dumps(fields if text is None else {'text': text, **fields})}>>"


FAILING = script("never", raise_at=0)

# -- TGI's own routes --------------------------------------------------------------------------------------------------

_SAMPLING = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "typical_p": 0.9, "watermark": True}
_GREEDY = {
    "details": True,
    "max_new_tokens": 2,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.5,
    "return_full_text": True,
    "truncate": 30,
    "top_n_tokens": 2,
}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}

_EVERYWHERE: list[tuple[str, dict[str, Any]]] = [
    (script("one two"), {}),
    (script("one two three"), _GREEDY),
    (script("one two three"), {"details": True, "stop": ["two"], "seed": 7, **_SAMPLING}),
    (script("one"), {"details": True, "grammar": {"type": "regex", "value": "(yes|no)"}, "max_new_tokens": 4}),
    (script("one"), {"details": True, "grammar": {"type": "json", "value": _SCHEMA}, "max_new_tokens": 40}),
]
_WHOLE_ONLY: list[tuple[str, dict[str, Any]]] = [
    (script("one two"), {"details": True, "decoder_input_details": True}),
    (
        script("one two"),
        {"details": True, "decoder_input_details": True, "best_of": 2, "top_n_tokens": 2, "do_sample": True},
    ),
]


def _native() -> list[Exchange]:
    found = []
    for path, extra, whole in (
        ("/", {}, True),
        ("/", {"stream": False}, True),
        ("/", {"stream": True}, False),
        ("/generate", {}, True),
        ("/generate_stream", {}, False),
    ):
        for prompt, parameters in [*_EVERYWHERE, *(_WHOLE_ONLY if whole else [])]:
            found.append(Exchange("POST", path, body={"inputs": prompt, "parameters": parameters, **extra}))
        failures: list[tuple[int, Any, Node]] = [
            (400, MALFORMED, "usual"),
            (422, {"inputs": "x", "parameters": {"temperature": 0}, **extra}, "usual"),
            (422, {"inputs": "", **extra}, "usual"),
            (424, {"inputs": FAILING, **extra}, "usual"),
            (429, {"inputs": "x", **extra}, "full"),
        ]
        # A malformed body does not say what it wants; elsewhere it is the client that wants errors as events.
        accepts = (None,) if whole else (None, EVENTS)
        found += [Exchange("POST", path, *failure, accept) for failure in failures for accept in accepts]
        if not whole:
            # An error that comes after the first token is an event of a stream that began well.
            late = {"inputs": script("a b c", raise_at=2), "parameters": {"details": True}, **extra}
            found.append(Exchange("POST", path, body=late, fails_late=True))
    return [
        *found,
        Exchange("POST", "/tokenize", body={"inputs": "naïve 🤗", "parameters": {"truncate": 5}}),
        Exchange("GET", "/health"),
        Exchange("GET", "/health", 503, node="alone"),
        Exchange("GET", "/info"),
        Exchange("GET", "/metrics"),
    ]


# -- Open Inference Protocol -------------------------------------------------------------------------------------------

_MODEL_PATH = "/v2/models/{MODEL_NAME}/versions/{MODEL_VERSION}"


def _open_inference() -> list[Exchange]:
    found = []
    for path in (f"{_MODEL_PATH}/generate", f"{_MODEL_PATH}/generate_stream"):
        for prompt, parameters in (
            (script("one two"), {}),
            (script("one two"), {"details": True, "temperature": 0, "top_p": 1}),
            (script("one two three"), {"details": True, "max_tokens": 2}),
            (script("one two three"), {"details": True, "stop": ["two"], "temperature": 0.5, "top_p": 0.9}),
        ):
            found.append(Exchange("POST", path, body={"text_input": prompt, "parameters": parameters}))
        failures: list[tuple[int, Any, Node]] = [
            (422, {"text_input": ""}, "usual"),
            (422, {"text_input": "x", "parameters": {"max_tokens": 0}}, "usual"),
            (424, {"text_input": FAILING}, "usual"),
            (429, {"text_input": "x"}, "full"),
        ]
        accepts = (None, EVENTS) if path.endswith("stream") else (None,)
        found += [Exchange("POST", path, *failure, accept) for failure in failures for accept in accepts]
    return found


# -- OpenAI --------------------------------------------------------------------------------------------------------------

_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a thing",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string", "enum": ["sun", "moon"]}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}
_TGI_TOOL = {"type": "function", "function": {"name": "look", "description": "Looks", "arguments": {"type": "object"}}}
_ONE_CALL = {"parallel_tool_calls": False, "max_tokens": 60}
_OPENAI = {
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logit_bias": {"17": -5},
    "seed": 3,
    "stop": ["four"],
    "temperature": 0.7,
    "top_p": 0.9,
}


def _said(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tgi", "messages": [{"role": "user", "content": text}], **more}


def _chat() -> list[Exchange]:
    path = "/v1/chat/completions"
    parts = [{"type": "text", "text": script("one")}]
    bodies: list[dict[str, Any]] = [
        _said(script("one two")),
        _said(script("one two three"), max_tokens=2, n=1, **_OPENAI),
        _said(script("one two"), logprobs=True, top_logprobs=2),
        {"messages": [{"role": "user", "name": "Ada", "content": parts}]},
        _said(script("yes"), response_format={"type": "regex", "value": "(yes|no)"}, guideline="Be brief"),
        _said(script("x"), response_format={"type": "json", "value": _SCHEMA}, max_tokens=60),
        _said(script("x"), tools=[_TOOL], tool_choice="required", tool_prompt="Tools:", **_ONE_CALL),
        _said(script("x"), tools=[_TGI_TOOL], tool_choice={"function": {"name": "look"}}, max_tokens=60),
    ]
    failures: list[tuple[int, Any, Node]] = [
        (400, b'{"messages": ', "flat"),
        (422, {"messages": []}, "flat"),
        (422, _said("x", temperature=-1), "flat"),
        (422, _said("x", temperature=-1), "usual"),
        (424, _said(FAILING), "flat"),
        (424, _said(FAILING), "usual"),
        (429, _said("x"), "full"),
    ]
    return [
        *(Exchange("POST", path, body={**body, **way}) for body in bodies for way in ({}, {"stream": True})),
        Exchange("POST", path, body=_said(script("a b c", raise_at=2), stream=True), node="flat", fails_late=True),
        *(Exchange("POST", path, *failure) for failure in failures),
    ]


def _completions() -> list[Exchange]:
    path = "/v1/completions"
    both: tuple[Node, Node] = ("usual", "flat")
    late = {"prompt": script("a b c", raise_at=2), "stream": True}
    bodies: list[dict[str, Any]] = [
        {"model": "tgi", "prompt": script("one two")},
        {"prompt": [script("one"), script("two")]},
        {"prompt": script("one two"), "logprobs": 2},
        {"prompt": script("one two three"), "max_tokens": 2, "repetition_penalty": 1.1, **_OPENAI},
    ]
    failures: list[tuple[int, Any, Node]] = [
        (400, b'{"prompt": ', "usual"),
        (400, b'{"prompt": ', "flat"),
        (422, {"model": "tgi", "prompt": ""}, "flat"),
        (422, {"model": "tgi", "prompt": "x", "suffix": "y"}, "flat"),
        (424, {"model": "tgi", "prompt": FAILING}, "flat"),
        (429, {"model": "tgi", "prompt": "x"}, "full"),
    ]
    return [
        *(Exchange("POST", path, body={**body, **way}) for body in bodies for way in ({}, {"stream": True})),
        *(Exchange("POST", path, body=late, node=node, fails_late=True) for node in both),
        *(Exchange("POST", path, *failure) for failure in failures),
    ]


EXCHANGES = [*_native(), *_open_inference(), *_chat(), *_completions()]

LEAST: dict[str, dict[str, Any]] = {
    **{path: {"inputs": script("one")} for path in ("/", "/generate", "/generate_stream", "/tokenize")},
    **{f"{_MODEL_PATH}/{name}": {"text_input": script("one")} for name in ("generate", "generate_stream")},
    "/v1/chat/completions": {"model": "tgi", "messages": [{"role": "user", "content": script("one")}]},
    "/v1/completions": {"model": "tgi", "prompt": script("one")},
}
"""Path -> the smallest body that every contract with the path takes."""
