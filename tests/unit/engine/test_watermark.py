"""Green lists, and finding a watermark in what the engine says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from common.parameters import Watermark
from common.settings import Settings
from common.tokenizer import Tokenizer
from tests.unit.engine.support import HashedModel, make_job, run, tokens_of
from workers.engine.engine import Engine
from workers.engine.watermark import Detection, detect, green

IDS = np.arange(50_000, dtype=np.uint32)
PROMPT = [5, 6, 7]


@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.9])
def test_a_share_of_gamma_is_green(gamma: float) -> None:
    for previous in (0, 1, 49_151):
        share = green(Watermark(gamma), previous, IDS).mean()
        assert abs(share - gamma) < 4 * (gamma * (1 - gamma) / len(IDS)) ** 0.5


def test_lists_depend_on_key_and_previous_token_and_on_nothing_else() -> None:
    one = green(Watermark(), 7, IDS)
    assert (one == green(Watermark(delta=5.0), 7, IDS)).all()
    assert (one[100:200] == green(Watermark(), 7, IDS[100:200])).all()
    for other in (green(Watermark(), 8, IDS), green(Watermark(key=1), 7, IDS)):
        assert abs((one == other).mean() - 0.5) < 0.02


def test_lists_stay_what_they_are() -> None:
    """A text marked by one version is found by the next."""
    assert np.flatnonzero(green(Watermark(), 1000, IDS[:40])).tolist() == [
        2,
        4,
        8,
        9,
        10,
        11,
        16,
        17,
        18,
        19,
        21,
        23,
        25,
        26,
        27,
        32,
        33,
        35,
        36,
        38,
        39,
    ]


def generate(
    tokenizer: Tokenizer, watermark: Watermark | None, seed: int, tokens: int = 120, *, sample: bool = True
) -> list[int]:
    engine = Engine(HashedModel(tokenizer.vocab_size), tokenizer, Settings.of(model_id="test"))
    job = make_job(
        PROMPT, max_new_tokens=tokens, sample=sample, seed=seed, temperature=1.5, watermark=watermark, ignore_eos=True
    )
    return [token.id for token in tokens_of(run(engine, [job]))]


@pytest.mark.parametrize("sample", [False, True])
def test_the_engines_output_carries_it(tokenizer: Tokenizer, sample: bool) -> None:
    for seed in range(3):
        found = detect(Watermark(), PROMPT[-1:] + generate(tokenizer, Watermark(), seed, sample=sample))
        assert found.z > 4
        assert found.p_value < 1e-4


def test_no_watermark_no_detection(tokenizer: Tokenizer) -> None:
    scores = [detect(Watermark(), generate(tokenizer, None, seed)).z for seed in range(6)]
    scores += [detect(Watermark(key=1), generate(tokenizer, Watermark(), seed)).z for seed in range(6)]
    assert max(scores) < 4
    assert abs(sum(scores) / len(scores)) < 1.5


def test_repeated_pairs_count_once() -> None:
    assert detect(Watermark(), [3, 4] * 50).scored == 2


def test_figures_of_a_detection() -> None:
    ids = list(range(101))
    count = sum(bool(green(Watermark(0.25), before, IDS)[token]) for before, token in itertools.pairwise(ids))
    found = detect(Watermark(0.25), ids)
    assert (found.scored, found.green) == (100, count)
    assert found.z == pytest.approx((count - 25) / (100 * 0.25 * 0.75) ** 0.5)


def test_one_token_tells_nothing() -> None:
    for ids in ([], [1]):
        with pytest.raises(ValueError, match="two tokens"):
            detect(Watermark(), ids)
    assert isinstance(detect(Watermark(), [1, 2]), Detection)
