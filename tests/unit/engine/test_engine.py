"""The step, over a model that checks how it is used and over the scripted one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from common.tokenizer import Tokenizer
from common.wire import Accepted, Failed, Finish, Job, Tokens
from tests.unit.engine.engines import bodies, greedy, ids_of, make_engine
from tests.unit.engine.support import (
    EOS,
    Clock,
    HashedModel,
    hashed_logits,
    last_of,
    make_job,
    run,
    script_prompt,
    scripted_engine,
    text_of,
    tokens_of,
)

# -- tokens


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 60])
def test_greedy_tokens_are_the_models(tokenizer: Tokenizer, length: int) -> None:
    prompt = [10 + i % 50 for i in range(length)]
    events = run(make_engine(tokenizer), [make_job(prompt, ignore_eos=True)])
    assert isinstance(events[0].body, Accepted)
    assert ids_of(events) == greedy(prompt, 20, tokenizer.vocab_size)
    last = last_of(events)
    assert isinstance(last, Tokens)
    assert last.finish == Finish("length", 20, 0.0)


def test_company_changes_nothing(tokenizer: Tokenizer) -> None:
    jobs = [
        make_job(
            [10 + n, 20, 30][: 1 + n % 3] * (n + 1), name=str(n), seed=n, sample=n % 2 == 1, ignore_eos=True, top_p=0.9
        )
        for n in range(12)
    ]
    together = run(make_engine(tokenizer), jobs)
    for job in jobs:
        alone = run(make_engine(tokenizer), [job])
        assert tokens_of(alone, job.id) == tokens_of(together, job.id)


def test_at_most_one_tokens_event_per_request_and_step(tokenizer: Tokenizer) -> None:
    engine = make_engine(tokenizer)
    engine.add([make_job([10 + n] * 9, name=str(n), ignore_eos=True) for n in range(12)])
    while engine.has_work:
        requests = [event.request for event in engine.step() if isinstance(event.body, Tokens)]
        assert len(requests) == len(set(requests))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"sample": True, "seed": 7},
        {"sample": True, "seed": 7, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "typical_p": 0.95},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_n_tokens": 3},
    ],
)
def test_resumed_anywhere_goes_on_the_same(tokenizer: Tokenizer, parameters: dict[str, Any]) -> None:
    prompt = [15, 16, 17, 18, 19]
    whole = tokens_of(run(make_engine(tokenizer), [make_job(prompt, ignore_eos=True, **parameters)]))
    for cut in range(1, 20):
        known = [token.id for token in whole[:cut]]
        job = make_job(prompt, ignore_eos=True, attempt=2, generated_ids=known, **parameters)
        events = run(make_engine(tokenizer), [job])
        first = next(body for body in bodies(events) if isinstance(body, Tokens))
        assert first.offset == cut
        assert tokens_of(events) == whole[cut:]
        last = last_of(events)
        assert isinstance(last, Tokens)
        assert last.finish is not None
        assert last.finish.generated_tokens == 20


@pytest.mark.parametrize("stop", [[], ["zzz"], ["dog. T"]])
def test_resumed_with_held_text_and_split_characters(tokenizer: Tokenizer, stop: list[str]) -> None:
    prompt = script_prompt(tokenizer, text="azz 🤗z 한글zz dog. The end")
    whole = tokens_of(run(scripted_engine(tokenizer), [make_job(prompt, stop=stop, max_new_tokens=100)]))
    for cut in range(1, len(whole)):
        job = make_job(prompt, stop=stop, max_new_tokens=100, generated_ids=[token.id for token in whole[:cut]])
        rest = tokens_of(run(scripted_engine(tokenizer), [job]))
        assert whole[:cut] + rest == whole or whole[cut - 1].text == "" == text_of(whole[cut - 1 : cut])
        assert text_of(whole[:cut]) + text_of(rest) == text_of(whole)


def test_resumed_behind_its_last_token_ends_at_once(tokenizer: Tokenizer) -> None:
    events = run(make_engine(tokenizer), [make_job([10], max_new_tokens=3, generated_ids=[11, 12, 13])])
    assert bodies(events) == [Accepted(""), Tokens(3, [], Finish("length", 3, 0.0))]


@pytest.mark.parametrize("prefill", [5, 16, 100])
def test_prompt_logprobs_over_chunks(tokenizer: Tokenizer, prefill: int) -> None:
    prompt = [10 + i for i in range(23)]
    vocab = tokenizer.vocab_size
    job = make_job(prompt, prefill_logprobs=True, prefill_top_n_tokens=2, max_new_tokens=2, ignore_eos=True)
    events = run(make_engine(tokenizer, max_batch_prefill_tokens=prefill), [job])
    last = last_of(events)
    assert isinstance(last, Tokens)
    assert last.finish is not None
    found = last.finish.prefill
    assert [token.id for token in found] == prompt
    assert [token.text for token in found] == [tokenizer.decode([token]) for token in prompt]
    assert found[0].logprob is None
    for position in range(1, 23):
        row = hashed_logits(prompt[:position], vocab).astype(np.float64)
        expected = row[prompt[position]] - np.log(np.exp(row).sum())
        assert found[position].logprob == pytest.approx(expected, abs=1e-5)
        assert [top.id for top in found[position].top] == np.argsort(-row, kind="stable")[:2].tolist()
    assert found[0].top == []
    assert ids_of(events) == greedy(prompt, 2, vocab)


def test_resumed_prompt_logprobs_are_whole(tokenizer: Tokenizer) -> None:
    prompt = [10 + i for i in range(23)]
    job = make_job(prompt, prefill_logprobs=True, max_new_tokens=5, ignore_eos=True)
    whole = last_of(run(make_engine(tokenizer), [job]))
    known = greedy(prompt, 3, tokenizer.vocab_size)
    again = make_job(prompt, prefill_logprobs=True, max_new_tokens=5, ignore_eos=True, generated_ids=known)
    resumed = last_of(run(make_engine(tokenizer), [again]))
    assert isinstance(whole, Tokens)
    assert isinstance(resumed, Tokens)
    assert whole.finish == resumed.finish


# -- refusals


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (make_job([]), "at least 1 token"),
        (make_job([1], max_new_tokens=0), "`max_new_tokens`"),
        (make_job([1], temperature=0.0), "`temperature`"),
        (make_job([1] * 250, max_new_tokens=7), "must be <= 256. Given: 250 `inputs`"),
        (make_job([1, 10**6]), "prompt token ids must be between 0 and"),
        (make_job([1, -1]), "prompt token ids must be between 0 and"),
        (make_job([1], generated_ids=[2**40]), "generated token ids must be between 0 and"),
        (make_job([1], generated_ids=[2] * 21), "more than `max_new_tokens`"),
        (make_job([1], version=99), "version"),
    ],
)
def test_bad_jobs_are_refused(tokenizer: Tokenizer, job: Job, message: str) -> None:
    engine = make_engine(tokenizer)
    engine.add([job, make_job([5], name="good", max_new_tokens=1)])
    events = engine.step()
    (refusal,) = bodies(events)
    assert isinstance(refusal, Failed)
    assert refusal.error_type == "validation"
    assert refusal.message.startswith("Input validation error: ")
    assert message in refusal.message
    assert not refusal.retryable
    assert isinstance(last_of(events, "good"), Tokens)
    assert not engine.has_work


def test_what_never_fits_the_cache_is_refused(tokenizer: Tokenizer) -> None:
    engine = make_engine(tokenizer, HashedModel(tokenizer.vocab_size, num_blocks=11))
    engine.add([make_job([5] * 21, max_new_tokens=20)])
    (event,) = engine.step()
    assert isinstance(event.body, Failed)
    assert "must be <= 40" in event.body.message
    assert isinstance(last_of(run(engine, [make_job([5] * 20, max_new_tokens=20)])), Tokens)


def test_a_deadline_counts_while_waiting_only(tokenizer: Tokenizer) -> None:
    unix_time = Clock()
    engine = make_engine(tokenizer, HashedModel(tokenizer.vocab_size, max_batch_size=1), unix_time=unix_time)
    engine.add([make_job([5], name=name, deadline=unix_time.now + 10, ignore_eos=True) for name in "ab"])
    engine.step()
    unix_time.now += 11
    events = engine.step()
    (timeout,) = bodies(events, "b")
    assert isinstance(timeout, Failed)
    assert timeout.error_type == "timeout"
    assert len(bodies(events, "a")) == 1
    assert isinstance(last_of(run(engine, []), "a"), Tokens)


# -- figures


def test_stats_add_up(tokenizer: Tokenizer) -> None:
    engine = make_engine(tokenizer, prefix_caching=False)
    engine.add([make_job([5] * 20, name=name, ignore_eos=True, max_new_tokens=6) for name in "ab"])
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.reserved_tokens) == (1, 1, 26)
    run(engine, [])
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.reserved_tokens) == (0, 0, 0)
    assert (stats.prompt_tokens, stats.generated_tokens) == (40, 12)
    assert stats.inference_count == stats.inference_success
    assert stats.inference_failure == {}
    steps = sum(stats.inference_count.values())
    assert stats.inference_count["prefill"] == 3
    assert stats.batch_size is not None
    assert sum(stats.batch_size.counts) == steps
    for histograms in (stats.forward_seconds, stats.inference_seconds, stats.decode_seconds):
        assert {method: sum(h.counts) for method, h in histograms.items()} == stats.inference_count


def test_inference_seconds_count_from_admission(tokenizer: Tokenizer) -> None:
    clock = Clock()
    engine = scripted_engine(tokenizer, clock)
    engine.add([make_job(script_prompt(tokenizer, text="a", first_ms=2000))])
    events = engine.step()
    clock.now += 2
    events += engine.step() + engine.step()
    last = last_of(events)
    assert isinstance(last, Tokens)
    assert last.finish is not None
    assert last.finish.inference_seconds == 2.0


def test_the_engine_imports_no_torch() -> None:
    code = (
        "import sys, workers.engine.main, workers.engine.scripted_model; "
        "bad = {'torch', 'transformers', 'redis', 'celery', 'falcon'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_end_of_text_ends(tokenizer: Tokenizer) -> None:
    events = run(scripted_engine(tokenizer), [make_job(script_prompt(tokenizer, text="Paris."))])
    last = last_of(events)
    assert isinstance(last, Tokens)
    assert last.finish is not None
    assert last.finish.reason == "eos_token"
    assert text_of(tokens_of(events)) == "Paris."
    assert (last.tokens[-1].text, last.tokens[-1].special) == (EOS, True)
