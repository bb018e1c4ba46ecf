"""Every rule on scores against transformers' own, on random logits and on a real model's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from common.parameters import GenerationParameters
from tests.integration.engine.conftest import Driver
from workers.engine import processors
from workers.engine.plan import FloatArray
from workers.engine.processors import Scores

IDS = [5, 9, 9, 100, 5, 731, 2]
BIAS = {5: 2.5, 9: -100.0, 300: 7.0}

Rule = tuple[Callable[[Scores], object], Callable[[], LogitsProcessor]]
RULES: dict[str, Rule] = {
    **{
        f"repetition_penalty {penalty}": (
            partial(processors.penalise_repetition, penalty=penalty, ids=IDS),
            partial(RepetitionPenaltyLogitsProcessor, penalty),
        )
        for penalty in (0.5, 1.3)
    },
    "logit_bias": (
        partial(processors.add_bias, bias=BIAS),
        partial(SequenceBiasLogitsProcessor, [[[token], bias] for token, bias in BIAS.items()]),
    ),
    **{
        f"temperature {t}": (
            partial(processors.divide_by_temperature, temperature=t),
            partial(TemperatureLogitsWarper, t),
        )
        for t in (0.3, 1.7)
    },
    **{f"top_k {k}": (partial(processors.keep_top_k, k=k), partial(TopKLogitsWarper, k)) for k in (1, 40)},
    **{f"top_p {p}": (partial(processors.keep_top_p, p=p), partial(TopPLogitsWarper, p)) for p in (0.1, 0.9, 0.995)},
    **{f"min_p {p}": (partial(processors.keep_min_p, p=p), partial(MinPLogitsWarper, p)) for p in (0.01, 0.3, 1.0)},
    **{f"typical_p {p}": (partial(processors.keep_typical, p=p), partial(TypicalLogitsWarper, p)) for p in (0.2, 0.95)},
}


@pytest.fixture(scope="module")
def random_rows() -> list[FloatArray]:
    random = np.random.default_rng(11)
    return [random.normal(scale=scale, size=2_000).astype(np.float32) for scale in (0.5, 2.0, 5.0) for _ in range(4)]


def check(rule: Rule, rows: list[FloatArray]) -> None:
    ours, make_theirs = rule
    for row in rows:
        scores = row.copy()
        ours(scores)
        theirs = make_theirs()(torch.tensor([IDS]), torch.from_numpy(row.copy())[None])[0]
        # Shifting all scores changes no probability.
        expected = torch.log_softmax(theirs, dim=-1).numpy()
        found = torch.log_softmax(torch.from_numpy(scores), dim=-1).numpy()
        assert np.flatnonzero(np.isfinite(found)).tolist() == np.flatnonzero(np.isfinite(expected)).tolist()
        kept = np.isfinite(expected)
        np.testing.assert_allclose(found[kept], expected[kept], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("name", RULES)
def test_on_random_logits(random_rows: list[FloatArray], name: str) -> None:
    check(RULES[name], random_rows)


def test_on_a_real_model(driver: Driver, prose: list[int]) -> None:
    logits = driver.whole(prose[:40])
    for rule in RULES.values():
        check(rule, list(logits[::8]))


def test_all_of_them_in_order(random_rows: list[FloatArray]) -> None:
    parameters = GenerationParameters(
        max_new_tokens=1, seed=0, repetition_penalty=1.2, logit_bias=BIAS, temperature=0.7, top_k=50, top_p=0.9, min_p=0.02, typical_p=0.9
    )  # fmt: skip
    chain: list[LogitsProcessor] = [
        RepetitionPenaltyLogitsProcessor(1.2),
        SequenceBiasLogitsProcessor([[[token], bias] for token, bias in BIAS.items()]),
        TemperatureLogitsWarper(0.7),
        TopKLogitsWarper(50),
        TopPLogitsWarper(0.9),
        MinPLogitsWarper(0.02),
        TypicalLogitsWarper(0.9),
    ]

    def all_of_theirs(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for processor in chain:
            scores = processor(ids, scores)
        return scores

    check((lambda scores: processors.process(scores, parameters, IDS, 3), lambda: all_of_theirs), random_rows)  # type: ignore[arg-type, return-value]
