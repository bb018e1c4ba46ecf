"""Cases from other servers' bug reports, replayed: parameters and their rules."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.protocols.tgi_request import GenerateParameters
from ops.local_service import LocalService
from tests.acceptance.native import GENERATING, TIMEOUT, checked, events, post, refused, script, text_of
from tests.event_streams import data_of

SENTENCE = " The quick brown fox jumps over the lazy dog."
NULLABLE = sorted(GenerateParameters.model_fields)


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


def details(url: str, prompt: str, **parameters: Any) -> dict[str, Any]:
    response = post(f"{url}/generate", prompt, **{"details": True, **parameters})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["details"]
    return found


@pytest.mark.parametrize("path", GENERATING)
def test_c01_an_empty_prompt(url: str, path: str) -> None:
    """An empty prompt is refused, a space is one; the next request is served."""
    refused(post(url + path, "", stream=True), "`inputs`")
    assert text_of(post(url + path, " ", max_new_tokens=3)) == " The quick brown"
    assert text_of(post(url + path, script("next"))) == "next"


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("inputs", [[1, 2, 3], [[1, 2], [3]], [-1], [], [[]], ["a", 1], 7, True, {"a": "b"}], ids=str)
def test_c02_prompts_that_are_no_text(url: str, path: str, inputs: Any) -> None:
    """Token ids are not a prompt of the native routes: refused, never an error of the server."""
    refused(post(url + path, inputs, stream=True), "`inputs`: must be a string")


@pytest.mark.parametrize("path", GENERATING)
def test_c04_no_limit_given(url: str, path: str) -> None:
    """Without `max_new_tokens` the answer has 100 tokens at most; with null it fills the context: both as TGI's had."""
    limit = httpx.get(url + "/info", timeout=TIMEOUT).json()["max_total_tokens"]
    for parameters, total in (({"details": True}, None), ({"details": True, "max_new_tokens": None}, limit)):
        response = post(url + path, "Talk.", **parameters)
        found: Any = events(response)[-1] if path == "/generate_stream" else response.json()
        details = (found[0] if path == "/" else found)["details"]
        expected = 100 if total is None else total - len(post(f"{url}/tokenize", "Talk.").json())
        assert (details["finish_reason"], details["generated_tokens"]) == ("length", expected)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("wrong", [0, -1, 1.5, 10.0, "5", 1e9, 2**32, 10**30, True, [5]], ids=str)
def test_c05_limits_that_are_none(url: str, path: str, wrong: Any) -> None:
    """Zero, negative, fractional, huge and quoted limits are refused by name."""
    refused(post(url + path, "x", max_new_tokens=wrong), "max_new_tokens`")


@pytest.mark.parametrize("path", GENERATING)
def test_c06_a_limit_beyond_the_context(url: str, path: str) -> None:
    """A limit larger than the context is refused with the true numbers."""
    count = len(post(f"{url}/tokenize", "ten words or so").json())
    message = refused(post(url + path, "ten words or so", max_new_tokens=65_535), "`max_new_tokens`")
    assert "4096" in message
    assert f"given {count} `inputs` tokens and 65535 `max_new_tokens`" in message


def test_c08_prompts_at_the_limit(url: str) -> None:
    """A prompt of exactly the longest length is served; one token more is refused with the count of `/tokenize`."""
    info = httpx.get(f"{url}/info").json()
    longest = info["max_input_tokens"]
    prompt = " a" * (longest + 1)
    assert len(post(f"{url}/tokenize", prompt).json()) == longest + 1
    fits = prompt.removesuffix(" a")
    assert post(f"{url}/generate", fits, max_new_tokens=1).headers["x-prompt-tokens"] == str(longest)
    for path in GENERATING:
        message = refused(post(url + path, prompt, max_new_tokens=1), "`inputs`")
        assert str(longest + 1) in message
        assert str(info["max_total_tokens"]) in message
    assert post(f"{url}/generate", prompt, max_new_tokens=1, truncate=longest).status_code == 200
    refused(post(f"{url}/generate", prompt, max_new_tokens=1, truncate=longest + 1), "`truncate`")


REFUSED_VALUES = [
    ("temperature", [0, 0.0, -1, -0.5, 1e-50, "hot", True, 1e39]),
    ("top_p", [0, -0.1, 1, 1.0, 1.5, "0.5"]),
    ("typical_p", [0, 1.0, 1.5, -1]),
    ("top_k", [0, -1, 1.5, 2**31, "5"]),
    ("repetition_penalty", [0, -1, "1"]),
    ("frequency_penalty", [2.1, -2.1, "0"]),
    ("seed", [-1, 2**64, 1.5, "1"]),
    ("truncate", [0, -1, 4096, 1.5]),
    ("top_n_tokens", [6, -1, 1.5]),
    ("best_of", [3, 2**32, -1, "2"]),
]


@pytest.mark.parametrize(("field", "values"), REFUSED_VALUES, ids=[field for field, _ in REFUSED_VALUES])
def test_c10_c11_c12_c14_values_out_of_range(url: str, field: str, values: list[Any]) -> None:
    """Values outside TGI's ranges are refused by name, the neutral `top_p` 1 and `temperature` 0 among them."""
    for path in GENERATING:
        for wrong in values:
            refused(post(url + path, "x", **{field: wrong}), f"{field}`")


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 1e-6},
        {"temperature": 3e38},
        {"top_p": 1e-6},
        {"top_p": 0.999999},
        {"top_k": 2**31 - 1},
        {"top_k": 1, "top_p": 0.5, "typical_p": 0.5},
        {"typical_p": 1e-6},
        {"repetition_penalty": 1e-3},
        {"repetition_penalty": 100},
        {"frequency_penalty": -2},
        {"frequency_penalty": 2.0},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"best_of": 1, "seed": 1},
        {"top_n_tokens": 0},
    ],
    ids=str,
)
def test_c12_values_at_the_edge(url: str, parameters: dict[str, Any]) -> None:
    """Values just inside the ranges are computed with, more alternatives than there are tokens too."""
    for sample in (False, True):
        found = details(url, "x", max_new_tokens=4, do_sample=sample, **parameters)
        assert found["generated_tokens"] == 4 or found["finish_reason"] == "eos_token"
        assert all(token["logprob"] is None or token["logprob"] <= 0 for token in found["tokens"])


@pytest.mark.parametrize("path", GENERATING)
def test_c15_logit_bias(url: str, path: str) -> None:
    """It forces tokens, bans them, and is refused when it is wrong; never ignored."""
    first, other = (post(f"{url}/tokenize", text).json()[0] for text in ("plain", "zebra"))
    plain: dict[str, Any] = {"max_new_tokens": 1, "details": False}
    assert text_of(post(url + path, script("plain"), **plain)) == "plain"
    assert text_of(post(url + path, script("plain"), **plain, logit_bias={str(first["id"]): -100})) != "plain"
    assert text_of(post(url + path, script("plain"), **plain, logit_bias={str(other["id"]): 100})) == other["text"]
    for wrong in ({"x": 1}, {"5": 101}, {"5": "1"}, {"99999999": 1}, [5]):
        refused(post(url + path, "x", logit_bias=wrong), "logit_bias")


@pytest.mark.parametrize("path", GENERATING)
def test_c38_unknown_adapters(url: str, path: str) -> None:
    """Never the base model instead."""
    refused(post(url + path, "x", adapter_id="mine"), "`adapter_id`")


@pytest.mark.parametrize("path", GENERATING)
def test_c16_keys_nobody_knows(url: str, path: str) -> None:
    """Keys that the contract does not have are let pass, as TGI does, and a header says that they had no effect."""
    said = post(url + path, script("same"), num_beams=4, early_stopping=True, details=True)
    assert text_of(said) == "same"
    assert said.headers["x-ignored-parameters"] == "parameters.num_beams, parameters.early_stopping"
    body = {"inputs": script("same"), "model": "tgi", "a\r\nx-evil": 1, "ignored": 2, **{f"k{n}": n for n in range(99)}}
    said = checked(httpx.post(url + path, json=body, timeout=TIMEOUT))
    assert text_of(said) == "same"
    assert said.headers["x-ignored-parameters"].startswith("model, ?, ignored, k0, k1")
    assert "x-evil" not in said.headers
    assert "x-ignored-parameters" not in post(url + path, script("same"), details=True).headers


@pytest.mark.parametrize("path", GENERATING)
def test_c17_nulls_are_absent(url: str, path: str) -> None:
    """Every optional field may be null, and means what leaving it out means."""
    nothing = text_of(post(url + path, script("plain"), details=False))
    nulls = dict.fromkeys(NULLABLE)
    assert text_of(post(url + path, script("plain"), stream=None, **nulls)) == nothing == "plain"
    headers = {"content-type": "application/json"}
    body = json.dumps({"inputs": script("plain"), "parameters": None, "stream": None})
    assert text_of(checked(httpx.post(url + path, content=body, headers=headers, timeout=TIMEOUT))) == nothing


def test_c18_seeds(url: str) -> None:
    """The same seed draws the same text, another one another; greedy ignores it; a seed chosen here can be replayed."""
    hot: dict[str, Any] = {"do_sample": True, "temperature": 50.0, "max_new_tokens": 12}
    first, again, other = (details(url, "x", seed=seed, **hot) for seed in (42, 42, 43))
    assert first == again
    assert first["tokens"] != other["tokens"]
    assert (first["seed"], other["seed"]) == (42, 43)
    chosen, next_chosen = details(url, "x", **hot), details(url, "x", **hot)
    assert chosen["tokens"] != next_chosen["tokens"]
    assert details(url, "x", **hot, seed=chosen["seed"]) == chosen
    assert events(post(f"{url}/generate_stream", "x", details=True, **hot, seed=9))[-1]["details"]["seed"] == 9
    greedy = [details(url, "x", max_new_tokens=5, seed=seed) for seed in (None, 1, 2)]
    assert greedy[0] == greedy[1] == greedy[2]
    assert greedy[0]["seed"] is None


async def test_c20_neighbours_change_nothing(url: str) -> None:
    """The same request gives the same answer alone and beside seven others, again and again."""
    mine = {
        "inputs": "x",
        "parameters": {"do_sample": True, "temperature": 50.0, "seed": 7, "max_new_tokens": 20, "details": True},
    }
    others = [
        {"inputs": "y" * n, "parameters": {"do_sample": True, "temperature": 50.0, "max_new_tokens": 2 * n}}
        for n in range(1, 8)
    ]
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:

        async def ask(body: dict[str, Any]) -> Any:
            return (await client.post("/generate", json=body)).json()

        alone = await ask(mine)
        for _ in range(50):
            said, *_ = await asyncio.gather(ask(mine), *(ask(other) for other in others))
            assert said == alone


def test_c21_best_of(url: str) -> None:
    """Combinations TGI refuses are refused, each by name; one answer of one is always possible."""
    stream = f"{url}/generate_stream"
    refused(post(stream, "x", best_of=2, do_sample=True), "`best_of`")
    refused(post(stream, "x", best_of=0), "`best_of`")
    refused(post(f"{url}/generate", "x", best_of=2), "`best_of`")
    refused(post(f"{url}/generate", "x", best_of=3, do_sample=True), "at most 2")
    refused(post(f"{url}/generate", "x", best_of=2, do_sample=True, seed=1), "`seed`")
    for path in GENERATING:
        assert text_of(post(url + path, script("one"), best_of=1, seed=4)) == "one"


async def test_c22_top_tokens(url: str) -> None:
    """Each token has as many alternatives as were asked for, or more on ties, also beside requests that asked for none."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:

        async def ask(path: str, wanted: int | None) -> tuple[int | None, list[Any]]:
            parameters = {"max_new_tokens": 6, "details": True, "top_n_tokens": wanted}
            response = checked(await client.post(path, json={"inputs": "x", "parameters": parameters}))
            if path == "/generate":
                return wanted, response.json()["details"].get("top_tokens", [])
            return wanted, [event["top_tokens"] for event in events(response) if "top_tokens" in event]

        wanted = (None, 0, 1, 3, 5, None, 2, 4)
        answers = await asyncio.gather(*(ask(path, n) for n in wanted for path in ("/generate", "/generate_stream")))
    for asked, found in answers:
        assert len(found) == (6 if asked else 0)
        for top in found:
            assert len(top) >= (asked or 0)
            if len(top) > (asked or 0):
                assert top[-1]["logprob"] == top[(asked or 0) - 1]["logprob"]
    for path in GENERATING:
        refused(post(url + path, "x", top_n_tokens=6), "`top_n_tokens`")


def test_c23_prompt_details(url: str) -> None:
    """Prompt tokens have a log probability each, the first one none; a stream cannot have them."""
    prompt = "Some words in a row"
    tokens = post(f"{url}/tokenize", prompt).json()
    found = details(url, prompt, max_new_tokens=1, decoder_input_details=True)
    assert [token["id"] for token in found["prefill"]] == [token["id"] for token in tokens]
    assert found["prefill"][0]["logprob"] is None
    assert all(token["logprob"] < 0 for token in found["prefill"][1:])
    assert details(url, prompt, max_new_tokens=1)["prefill"] == []
    refused(post(f"{url}/generate_stream", prompt, decoder_input_details=True), "`decoder_input_details`")
    refused(post(f"{url}/", prompt, decoder_input_details=True, stream=True), "`decoder_input_details`")


@pytest.mark.parametrize("path", [*GENERATING, "/tokenize"])
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"inputs": ["a"]}, "`inputs`: must be a string"),
        ({"parameters": {}}, "`inputs`: is required"),
        ({"inputs": None}, "`inputs`"),
        ({"inputs": "x", "parameters": {"temperature": "hot"}}, "`parameters.temperature`"),
        ({"inputs": "x", "parameters": {"do_sample": "yes"}}, "`parameters.do_sample`"),
        ({"inputs": "x", "parameters": {"details": 1}}, "`parameters.details`"),
        ({"inputs": "x", "parameters": []}, "`parameters`"),
        ({"inputs": "x", "parameters": "none"}, "`parameters`"),
        ([], "body"),
        ("x", "body"),
        (7, "body"),
    ],
    ids=str,
)
def test_c31_wrong_types(url: str, path: str, body: Any, named: str) -> None:
    """A value of the wrong type is refused, and the message names its field but never shows it."""
    response = checked(httpx.post(url + path, json=body))
    message = refused(response, named)
    assert "hot" not in message


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 60),
    st.sampled_from([2**31, 2**32, 2**63, 2**64, -(2**63), 0.5, -0.0, 1e-45, 1e39, 1e308]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.lists(st.one_of(st.text(max_size=4), st.integers(), st.none()), max_size=6),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
INPUTS = st.one_of(st.text(st.characters(codec="utf-8"), max_size=30), VALUES)
PARAMETERS = st.dictionaries(st.sampled_from([*NULLABLE, "unknown", "stop_sequences"]), VALUES, max_size=6)


def no_number(constant: str) -> None:
    """A word of an answer may be one of them, a value never."""
    raise AssertionError(constant)


def test_c42_nothing_a_client_sends_breaks_the_server(url: str) -> None:
    """Random requests get an answer or a refusal in the contract's words, never a server error."""
    client = httpx.Client(base_url=url, timeout=TIMEOUT)

    # The same requests each time: some are for thousands of tokens, and luck decides how many of those there are.
    @settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(path=st.sampled_from([*GENERATING, "/tokenize"]), inputs=INPUTS, parameters=PARAMETERS, stream=VALUES)
    def send(path: str, inputs: Any, parameters: dict[str, Any], stream: Any) -> None:
        body = {"inputs": inputs, "parameters": parameters, "stream": stream}
        response = checked(client.post(path, json=body))
        assert response.status_code in (200, 422), response.text
        for data in data_of(response.text) if "event-stream" in response.headers["content-type"] else [response.text]:
            json.loads(data, parse_constant=no_number)

    with client:
        send()
    assert post(f"{url}/generate", script("fine")).json() == {"generated_text": "fine"}
