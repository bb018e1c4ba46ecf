from __future__ import annotations

import json
from typing import Any

import pytest

from common.errors import InvalidRequest, MalformedBody
from common.protocols.json_body import parse_body
from common.protocols.tgi_request import CompatGenerateRequest, GenerateParameters, GenerateRequest


def parse(parameters: Any) -> GenerateParameters:
    body = json.dumps({"inputs": "x", "parameters": parameters}).encode()
    return parse_body(GenerateRequest, body).parameters


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"inputs": "x"',
        b'{"inputs": "x", "a": NaN}',
        b'{"inputs": "x", "parameters": {"temperature": Infinity}}',
        b'{"inputs": "\xff"}',
        b'{"inputs": "\\ud800"}',
        b'{"inputs": "x", "inputs": "y"}',
        b'{"inputs": "x", "parameters": {"seed": 1, "seed": 2}}',
        b'{"inputs": ' + b"[" * 100_000,
        b'{"inputs": "x", "parameters": {"seed": ' + b"9" * 5000 + b"}}",
    ],
)
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        parse_body(GenerateRequest, body)


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"temperature": "hot"}, "`parameters.temperature`: must be a finite number"),
        ({"temperature": True}, "`parameters.temperature`"),
        ({"temperature": 1e39}, "`parameters.temperature`: must be a finite number"),
        ({"temperature": 10**400}, "`parameters.temperature`"),
        ({"max_new_tokens": "5"}, "`parameters.max_new_tokens`: must be an integer"),
        ({"max_new_tokens": 10.0}, "`parameters.max_new_tokens`"),
        ({"max_new_tokens": -1}, "`parameters.max_new_tokens`: must be at least 0"),
        ({"max_new_tokens": 2**32}, "`parameters.max_new_tokens`: must be less than 4294967296"),
        ({"seed": 2**64}, "`parameters.seed`: must be less than 18446744073709551616"),
        ({"seed": True}, "`parameters.seed`"),
        ({"top_k": 2**31}, "`parameters.top_k`"),
        ({"do_sample": 1}, "`parameters.do_sample`: must be true or false"),
        ({"stop": "x"}, "`parameters.stop`: must be an array"),
        ({"stop": ["a", None]}, "`parameters.stop.1`: must be a string"),
        ({"grammar": {"type": "ebnf", "value": ""}}, "`parameters.grammar.type`"),
        ([], "`parameters`: must be an object"),
    ],
)
def test_wrong_types_name_their_field(parameters: Any, named: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(parameters)
    assert caught.value.message.startswith("Input validation error: " + named)


@pytest.mark.parametrize("body", [b"{}", b"[]", b"3", b"null", b'{"inputs": null}', b'{"inputs": ["a"]}'])
def test_inputs_must_be_a_string(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_body(GenerateRequest, body)


def test_a_wrong_value_is_not_repeated_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(GenerateRequest, b'{"inputs": ["my secret prompt"], "parameters": {"seed": "secret too"}}')
    assert "secret" not in caught.value.message
    with pytest.raises(InvalidRequest) as caught:
        parse({"logit_bias": {"secret": 1.0}})
    assert "secret" not in caught.value.message
    with pytest.raises(InvalidRequest) as caught:
        parse({"logit_bias": {"9" * 100_000: 1.0}})
    assert len(caught.value.message) < 100


def test_null_means_absent_everywhere() -> None:
    nulls = dict.fromkeys(GenerateParameters.model_fields)
    assert parse(nulls) == parse({})
    body = parse_body(CompatGenerateRequest, b'{"inputs": "x", "parameters": null, "stream": null}')
    assert body == CompatGenerateRequest(inputs="x")


def test_absent_parameters_sample_and_empty_ones_do_not() -> None:
    assert parse_body(GenerateRequest, b'{"inputs": "x"}').parameters.do_sample
    assert not parse({}).do_sample


def test_integers_are_floats_too_and_floats_are_single() -> None:
    assert parse({"temperature": 2}).temperature == 2.0
    assert parse({"temperature": 1e-50}).temperature == 0.0
    assert parse({"seed": 2**64 - 1}).seed == 2**64 - 1


def test_unknown_keys_have_no_effect() -> None:
    known = parse({"num_beams": 4, "stop_sequences": ["x"]})
    assert {name: getattr(known, name) for name in type(known).model_fields} == parse({}).model_dump()
    assert set(known.model_extra or {}) == {"num_beams", "stop_sequences"}
