"""The sampler in torch chooses what the sampler in numpy chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from common.grammar import Grammar
from common.parameters import GenerationParameters
from tests.unit.engine.support import make_job
from workers.engine import device_sampler, noise
from workers.engine.device_sampler import NOT_FINITE, choose, samples, stage_rules
from workers.engine.sampler import Sampler
from workers.engine.sequence import Sequence

VOCAB = 1000
RULES: list[dict[str, Any]] = [
    {},
    {"sample": True},
    {"sample": True, "temperature": 0.3},
    {"sample": True, "temperature": 2.5},
    {"temperature": 1e-40},
    {"sample": True, "top_k": 1},
    {"sample": True, "top_k": 40},
    {"sample": True, "top_k": 5 * VOCAB},
    {"sample": True, "top_p": 0.4},
    {"sample": True, "top_p": 0.95, "temperature": 1.7},
    {"sample": True, "top_p": 1e-9},
    {"sample": True, "min_p": 0.1},
    {"sample": True, "min_p": 1.0},
    {"sample": True, "top_k": 50, "top_p": 0.8, "min_p": 0.02, "temperature": 0.8},
]


def test_it_chooses_as_the_host_does_with_all_rules_in_one_batch() -> None:
    generator = np.random.default_rng(0)
    host = Sampler(VOCAB)
    for round_ in range(20):
        # Rounded, so that there are ties.
        logits = generator.normal(scale=3.0, size=(len(RULES), VOCAB)).round(1).astype(np.float32)
        rows = []
        expected = []
        for seed, (rules, row) in enumerate(zip(RULES, logits, strict=True)):
            job = make_job([1, 2], generated_ids=[3] * round_, seed=seed + 2**40, **rules)
            rows.append((job.parameters, round_))
            expected.append(host.sample(Sequence(job), row))
        ids, logprobs = choose(torch.from_numpy(logits), stage_rules(rows, VOCAB, torch.from_numpy))
        assert ids.tolist() == [choice.id for choice in expected]
        assert logprobs.tolist() == pytest.approx([choice.logprob for choice in expected], abs=2e-5)


def test_a_row_does_not_depend_on_its_company(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(len(RULES), VOCAB, generator=torch.Generator().manual_seed(0))
    rows = [(make_job([1], seed=7, **rules).parameters, 3) for rules in RULES]
    together = choose(logits, stage_rules(rows, VOCAB, torch.from_numpy))[0].tolist()
    alone = [
        choose(logits[i : i + 1], stage_rules([row], VOCAB, torch.from_numpy))[0].item() for i, row in enumerate(rows)
    ]
    monkeypatch.setattr(device_sampler, "ROWS", 3)
    in_parts = choose(logits, stage_rules(rows, VOCAB, torch.from_numpy))[0].tolist()
    assert alone == together == in_parts


def test_its_noise_has_the_bits_of_the_hosts() -> None:
    ids = np.arange(200_000, dtype=np.uint32)
    for seed, index in [(0, 0), (1, 5), (2**64 - 1, 10**6)]:
        expected = noise.hashes(seed, index, ids)
        keys = torch.from_numpy(np.array([noise.key(seed, index)], dtype=np.uint64).view(np.int32)).view(1, 2)
        found = device_sampler.hashes(keys, len(ids))
        assert np.array_equal(found[0].numpy().view(np.uint32), expected)
        np.testing.assert_allclose(
            device_sampler.gumbel(found)[0].numpy(), noise.gumbel(expected), rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_told(bad: float) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[1, 17] = bad
    rows = [(make_job([1]).parameters, 0)] * 2
    ids, _ = choose(logits, stage_rules(rows, VOCAB, torch.from_numpy))
    assert ids.tolist() == [0, NOT_FINITE]


def test_what_it_does_not_know_is_left_to_the_host() -> None:
    assert all(samples(make_job([1], **rules).parameters) for rules in RULES)
    unknown: list[dict[str, Any]] = [
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": 0.1},
        {"openai_frequency_penalty": 0.1},
        {"typical_p": 0.9},
        {"logit_bias": {1: 1.0}},
        {"grammar": Grammar("regex", "a")},
        {"top_n_tokens": 1},
    ]
    known = GenerationParameters(max_new_tokens=1, seed=0)
    assert samples(known)
    assert not any(samples(make_job([1], **rules).parameters) for rules in unknown)
