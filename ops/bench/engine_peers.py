"""transformers itself on the same prompts: `generate` over a static batch, and `generate_batch`, its continuous batching."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from common.model_files import find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from ops.bench.engine_limits import clock
from ops.bench.engine_run import ANSWER_TOKENS, PROMPT_TOKENS, WIDTHS, WORDS

Peers = dict[str, dict[int, float]]
"""By what was called and the width: tokens per second, prefill included."""


def measure(threads: int, told: Callable[[Peers, str], None]) -> None:
    """`generate` and `generate_batch`; `told` gets what there is after each width, and what it was."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    files = find_model(Settings.of(), weights=True)
    text = Tokenizer(files).encode(WORDS * 20).ids
    model: Any = AutoModelForCausalLM.from_pretrained(files.path, dtype=torch.float32, local_files_only=True)
    model.eval()
    peers: Peers = {"generate": {}, "generate_batch": {}}
    for name, work in (("generate", _static), ("generate_batch", _continuous)):
        for width in WIDTHS:
            peers[name][width] = _rate(work(model, _prompts(text, width)), width)
            told(peers, f"{name} {width}: {peers[name][width]:.1f} tokens/s")


def _prompts(text: list[int], width: int) -> list[list[int]]:
    return [text[i : i + PROMPT_TOKENS] for i in range(width)]


def _rate(work: Callable[[], int], width: int) -> float:
    now = clock()
    started = now()
    tokens = work()
    assert tokens == width * ANSWER_TOKENS, f"{tokens} tokens of {width * ANSWER_TOKENS}"
    return tokens / (now() - started)


def _static(model: Any, prompts: list[list[int]]) -> Callable[[], int]:
    def work() -> int:
        ids = torch.tensor(prompts)
        answers = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=ANSWER_TOKENS,
            min_new_tokens=ANSWER_TOKENS,
        )
        return int(answers.shape[0] * (answers.shape[1] - PROMPT_TOKENS))

    return work


def _continuous(model: Any, prompts: list[list[int]]) -> Callable[[], int]:
    configuration: Any = GenerationConfig

    def work() -> int:
        # Its own choice of memory takes most of the machine's and half a minute.
        answers = model.generate_batch(
            inputs=prompts,
            generation_config=configuration(max_new_tokens=ANSWER_TOKENS, do_sample=False, eos_token_id=-1),
            continuous_batching_config=ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=256),
            progress_bar=False,
        )
        return sum(len(answer.generated_tokens) for answer in answers.values())

    return work


def child(threads: int, say: Callable[[str], object]) -> None:
    """One process's part: `say` gets the result as JSON whenever there is more of it; progress goes to stderr."""
    started = time.perf_counter()

    def told(peers: Peers, what: str) -> None:
        print(f"{time.perf_counter() - started:5.0f} s  transformers: {what}", file=sys.stderr, flush=True)
        say(json.dumps(peers))

    measure(threads, told)
