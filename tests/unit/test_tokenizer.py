"""Tokenizing a long text lets the other threads of the process run."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from common.model_files import ModelFiles
from common.tokenizer import Tokenizer
from tests.byte_model import write_byte_model

TEXT = "a b " * 250_000


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    write_byte_model(folder)
    (file,) = Path(folder).rglob("tokenizer.json")
    return Tokenizer(ModelFiles("bytes", file.parent))


@pytest.mark.parametrize("call", ["ids", "encode"])
def test_other_threads_run_while_a_long_text_is_tokenized(tokenizer: Tokenizer, call: str) -> None:
    done = threading.Event()
    turns = 0

    def work() -> None:
        getattr(tokenizer, call)(TEXT)
        done.set()

    thread = threading.Thread(target=work)
    started = time.perf_counter()
    thread.start()
    while not done.wait(0.001):
        turns += 1
    whole = time.perf_counter() - started
    thread.join()
    # Held up, this thread would have had a turn or two; left alone, it has one every few milliseconds, on a busy machine
    # every few dozen.
    assert turns > max(4, 5 * whole)


def test_both_calls_find_the_same_ids(tokenizer: Tokenizer) -> None:
    text = "The quick 🤗 brown fox \u2028 한글"
    assert tokenizer.ids(text) == tokenizer.encode(text).ids
