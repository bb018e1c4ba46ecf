"""The default model over HTTP says what transformers says, in any company, with true figures."""

from __future__ import annotations

import asyncio
import os

# Before the hub library is imported: everything here is local.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from functools import cached_property
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from common.model_files import default_model_folder, find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from ops.local_service import LocalService
from ops.watermark_detector import detect_in_text
from tests.acceptance.native import TIMEOUT, checked, events, post

PROMPTS = [
    "The capital of France is",
    "1, 2, 3, 5, 8, 13,",
    "def add(a, b):\n    return",
    "Ein Mann geht über die Straße und",
    "🤗",
    "It was a dark and stormy night. " * 20 + "Then",
]
COMPANY = [
    {"inputs": f"Number {n} on the list of things to do is", "parameters": parameters}
    for n, parameters in enumerate(
        [
            {"max_new_tokens": 25},
            {"max_new_tokens": 9, "do_sample": True, "seed": 1, "temperature": 1.4},
            {"max_new_tokens": 17, "do_sample": True, "seed": 2, "top_k": 3},
            {"max_new_tokens": 30, "stop": ["the"]},
            {"max_new_tokens": 12, "typical_p": 0.6},
            {"max_new_tokens": 3, "repetition_penalty": 1.3},
            {"max_new_tokens": 21, "top_p": 0.8, "seed": 7},
        ]
    )
]


class Reference:
    """The model as transformers runs it."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        folder = default_model_folder(Settings.of())
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._folder = folder

    @cached_property
    def model(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32)

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text))

    def continuation(self, text: str, new_tokens: int) -> list[int]:
        ids = torch.tensor([self.ids(text)])
        output = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
        )
        return list(output[0, ids.shape[1] :].tolist())

    def logits(self, ids: list[int]) -> Any:
        """Logits behind each id, `[len(ids), vocab]`."""
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.fixture(scope="module")
def url(real_service: LocalService) -> str:
    return real_service.url


def answer(url: str, inputs: str, **parameters: Any) -> dict[str, Any]:
    response = post(f"{url}/generate", inputs, **{"details": True, **parameters})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def token_ids(details: dict[str, Any]) -> list[int]:
    return [token["id"] for token in details["tokens"]]


def test_the_capital_of_france(url: str, reference: Reference) -> None:
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = str(reference.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    said = answer(url, prompt)
    assert "Paris" in said["generated_text"]
    assert said["details"]["finish_reason"] == "eos_token"
    assert said["details"]["tokens"][-1]["special"] is True
    assert "<|im_end|>" not in said["generated_text"]
    streamed = events(post(f"{url}/generate_stream", prompt, details=True))
    assert streamed[-1]["generated_text"] == said["generated_text"]


def test_greedy_is_transformers_generate(url: str, reference: Reference) -> None:
    for prompt in PROMPTS:
        expected = reference.continuation(prompt, 12)
        said = answer(url, prompt, max_new_tokens=12)
        assert token_ids(said["details"]) == expected, prompt
        ids = reference.ids(prompt)
        whole = reference.tokenizer.decode(ids + expected, skip_special_tokens=True)
        assert reference.tokenizer.decode(ids) + said["generated_text"] == whole


async def test_the_same_answer_in_any_company(url: str) -> None:
    mine = [
        {"inputs": "My favourite city is", "parameters": parameters}
        for parameters in (
            {"details": True, "max_new_tokens": 20, "do_sample": True, "seed": 42, "temperature": 1.2, "top_p": 0.95},
            {"details": True, "max_new_tokens": 20},
        )
    ]
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:

        async def ask(body: dict[str, Any]) -> Any:
            response = checked(await client.post("/generate", json=body))
            assert response.status_code == 200
            return response.json()

        alone = [await ask(body) for body in mine]
        assert alone[0]["generated_text"] != alone[1]["generated_text"]
        for body, expected in zip(mine, alone, strict=True):
            said, *_ = await asyncio.gather(ask(body), *(ask(other) for other in COMPANY))
            # Log probabilities too: the logits are the same bits.
            assert said == expected


def test_log_probabilities_are_the_model_s(url: str, reference: Reference) -> None:
    for prompt in PROMPTS[:3]:
        details = answer(url, prompt, max_new_tokens=8)["details"]
        ids, made = reference.ids(prompt), token_ids(details)
        expected = torch.log_softmax(reference.logits(ids + made), dim=-1)
        for position, token in enumerate(details["tokens"], start=len(ids) - 1):
            assert token["logprob"] == pytest.approx(float(expected[position, token["id"]]), abs=1e-3)


def test_log_probabilities_of_drawn_tokens_are_those_they_were_drawn_with(url: str, reference: Reference) -> None:
    prompt, temperature, top_k = "My favourite city is", 0.7, 20
    parameters = {"max_new_tokens": 8, "do_sample": True, "seed": 3, "temperature": temperature, "top_k": top_k}
    details = answer(url, prompt, **parameters)["details"]
    ids, made = reference.ids(prompt), token_ids(details)
    logits = reference.logits(ids + made) / temperature
    for position, token in enumerate(details["tokens"], start=len(ids) - 1):
        best = torch.topk(logits[position], top_k)
        assert token["id"] in best.indices.tolist()
        expected = logits[position, token["id"]] - torch.logsumexp(best.values, dim=-1)
        assert token["logprob"] == pytest.approx(float(expected), abs=1e-3)


@pytest.mark.parametrize("truncate", [None, 5])
def test_prompt_log_probabilities_are_the_model_s(url: str, reference: Reference, truncate: int | None) -> None:
    prompt = "The lighthouse keeper had two clocks, and they never agreed."
    parameters = {} if truncate is None else {"truncate": truncate}
    prefill = answer(url, prompt, max_new_tokens=1, decoder_input_details=True, **parameters)["details"]["prefill"]
    ids = reference.ids(prompt)[-(truncate or 0) :]
    assert [token["id"] for token in prefill] == ids
    assert [token["text"] for token in prefill] == [reference.tokenizer.decode([token_id]) for token_id in ids]
    assert prefill[0]["logprob"] is None
    expected = torch.log_softmax(reference.logits(ids), dim=-1)
    given = [token["logprob"] for token in prefill[1:]]
    assert given == pytest.approx([float(expected[i, token_id]) for i, token_id in enumerate(ids[1:])], abs=1e-3)


def test_the_most_likely_tokens_come_in_order(url: str, reference: Reference) -> None:
    prompt = "The capital of France is"
    details = answer(url, prompt, max_new_tokens=6, top_n_tokens=5)["details"]
    assert len(details["top_tokens"]) == len(details["tokens"]) == 6
    ids = reference.ids(prompt)
    logits = reference.logits(ids + token_ids(details))
    for position, (token, top) in enumerate(
        zip(details["tokens"], details["top_tokens"], strict=True), start=len(ids) - 1
    ):
        assert top[0] == token, "greedy takes the first one"
        logprobs = [other["logprob"] for other in top]
        assert logprobs == sorted(logprobs, reverse=True)
        assert [other["id"] for other in top] == torch.topk(logits[position], 5).indices.tolist()
        assert np.exp(logprobs).sum() <= 1 + 1e-5


def test_tokenize_is_the_model_s_tokenizer(url: str, reference: Reference) -> None:
    text = "naïve 日本 🤗 2024\n"
    tokens = post(f"{url}/tokenize", text).json()
    assert [token["id"] for token in tokens] == reference.ids(text)
    assert tokens[-1]["stop"] == len(text.encode())


def test_figures_in_headers(url: str, reference: Reference) -> None:
    prompt = "naïve 🤗 people say"
    response = post(f"{url}/generate", prompt, max_new_tokens=4)
    headers = response.headers
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == str(len(prompt))
    assert headers["x-prompt-tokens"] == str(len(reference.ids(prompt)))
    assert headers["x-generated-tokens"] == "4"
    assert int(headers["x-total-time"]) >= int(headers["x-inference-time"]) > 0


def test_the_watermark_is_found_in_what_the_service_says(url: str) -> None:
    """G2's way of asking, and the detector on the text that came back: nothing but the text is known to it."""
    tokenizer = Tokenizer(find_model(Settings.of(), weights=False))
    scores = []
    for watermark in (True, False):
        asked: dict[str, Any] = {
            "watermark": watermark,
            "do_sample": True,
            "seed": 0,
            "top_p": 0.95,
            "ignore_eos": True,
        }
        prompt = "The old lighthouse stood at the end of the pier, and"
        text = checked(post(f"{url}/generate", prompt, max_new_tokens=80, **asked)).json()["generated_text"]
        scores.append(detect_in_text(text, tokenizer, Settings.of()).z)
    assert scores[0] > 4 > scores[1], scores


def test_the_best_of_two_is_what_its_seed_gives_alone(url: str) -> None:
    sampled = {"do_sample": True, "max_new_tokens": 8, "temperature": 1.3}
    both = answer(url, PROMPTS[0], **sampled, best_of=2)
    (other,) = both["details"]["best_of_sequences"]
    means = [np.mean([token["logprob"] for token in found["tokens"]]) for found in (both["details"], other)]
    assert means[0] >= means[1]
    for text, found in ((both["generated_text"], both["details"]), (other["generated_text"], other)):
        alone = answer(url, PROMPTS[0], **sampled, seed=found["seed"])
        assert alone["generated_text"] == text
        assert alone["details"]["tokens"] == found["tokens"]
