"""On CPU a token's logits are the same bits however it came to be computed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from common.settings import Settings
from ops.tiny_models import tiny_options
from workers.engine.model_loader import load_runner
from workers.engine.model_runner import TransformersRunner
from workers.engine.plan import Row, StepPlan
from workers.engine.random_model import write_random_model

if TYPE_CHECKING:
    from tests.integration.engine.conftest import Driver


def test_chunks_of_any_size_equal_the_whole_prompt(driver: Driver, prose: list[int]) -> None:
    ids = prose[:530]  # longer than the attention kernel's own block of 512 keys
    whole = driver.whole(ids)
    assert np.array_equal(driver.in_chunks(ids, [128]), whole)
    assert np.array_equal(driver.in_chunks(ids, [1, 63, 2, 200, 230]), whole)


def test_decoding_equals_prefill_across_spans_of_keys(driver: Driver, prose: list[int]) -> None:
    ids = prose[:518]
    whole = driver.whole(ids)
    for first in (60, 508):
        sequence = driver.sequence(ids[: first + 10])
        driver.step((sequence, first))
        decoded = [driver.step((sequence, 1))[0][0] for _ in range(10)]
        driver.free(sequence)
        assert np.array_equal(np.stack(decoded), whole[first : first + 10])


def test_two_threads_agree_with_each_other_too(driver: Driver, prose: list[int]) -> None:
    torch.set_num_threads(2)
    ids, other = prose[:80], driver.sequence(prose[100:190])
    whole = driver.whole(ids)
    mine = driver.sequence(ids)
    logits = [driver.step((other, 9), (mine, 62))[1], driver.step((mine, 1))[0], *driver.step((mine, 17))]
    driver.free(mine, other)
    assert np.array_equal(np.concatenate(logits), whole)


def test_a_sequence_computes_the_same_in_any_company(driver: Driver, prose: list[int]) -> None:
    ids = prose[100:172]
    whole = driver.whole(ids)
    mine = driver.sequence(ids)
    others = [driver.sequence(prose[7 * i : 7 * i + 40 + i]) for i in range(10)]
    found = driver.step((others[0], 30), (mine, 50), (others[1], 1))
    logits = [found[1]]
    for position in range(50, 72):
        # The others prefill, decode, come and go.
        company = [(other, 1 + (i + position) % 3) for i, other in enumerate(others) if (i + position) % 4 == 0]
        company = [(other, count) for other, count in company if other.computed + count <= len(other.ids)]
        middle = len(company) // 2
        shares = [*company[:middle], (mine, 1), *company[middle:]]
        logits.append(driver.step(*shares)[middle])
    driver.free(mine, *others)
    assert np.array_equal(np.concatenate(logits), whole)


def test_prefilling_prompt_and_answer_equals_having_generated_it(driver: Driver, prose: list[int]) -> None:
    first = driver.sequence(prose[:90])
    (logits,) = driver.step((first, 90))
    rows = [logits[-1]]
    for _ in range(12):
        first.ids.append(int(rows[-1].argmax()))
        rows.append(driver.step((first, 1))[0][0])
    driver.free(first)
    again = driver.whole(list(first.ids))
    assert np.array_equal(again[89:], np.stack(rows))


def test_a_freed_extent_leaks_nothing_to_its_next_owner(
    driver: Driver, runner: TransformersRunner, prose: list[int]
) -> None:
    ids = prose[200:270]
    clean = driver.whole(ids)
    # What a sequence whose values overflowed would leave behind.
    pool = runner._backend.pool
    left = slice(runner.block_size, 6 * runner.block_size)
    for tensor in (*pool.keys.values(), *pool.values.values()):
        tensor[left].fill_(float("nan"))
    assert np.array_equal(driver.in_chunks(ids, [61, 1]), clean)
    for tensor in (*pool.keys.values(), *pool.values.values()):
        tensor[left].fill_(float("nan"))
    assert np.array_equal(driver.whole(ids), clean)
    for tensor in (*pool.keys.values(), *pool.values.values()):
        tensor[left].zero_()


def test_only_the_rows_asked_for_are_returned_in_plan_order(
    driver: Driver, runner: TransformersRunner, prose: list[int]
) -> None:
    whole = driver.whole(prose[:30])
    long, short, silent = (driver.sequence(prose[:n]) for n in (30, 5, 20))
    # Staged in another order than planned: decode rows come last.
    driver.step((short, 4))
    plan = StepPlan([Row(short, 4, 1, 1), Row(silent, 0, 20, 0), Row(long, 0, 30, 3)])
    logits = runner.forward(plan)
    assert logits.shape == (4, runner.vocab_size)
    assert np.array_equal(logits[0], whole[4])
    assert np.array_equal(logits[1:], whole[27:])
    assert runner.forward(StepPlan([Row(silent, 0, 20, 0)])).shape == (0, runner.vocab_size)
    driver.free(long, short, silent)


def test_the_default_model_in_bfloat16_does_so_too(prose: list[int]) -> None:
    from tests.integration.engine.conftest import Driver

    settings = Settings.of(engine_threads=1, max_batch_total_tokens=8192, device="cpu", dtype="bfloat16")
    _assert_same_bits(Driver(load_runner(settings, lambda stage, fraction: None)), prose[:150])


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_small_models_in_bfloat16_do_so_too(family: str, model_folder: Path) -> None:
    from tests.integration.engine.conftest import Driver

    write_random_model(model_folder, family, tiny_options(family))
    settings = Settings.of(
        model_id=str(model_folder), engine_threads=1, max_batch_total_tokens=16_384, device="cpu", dtype="bfloat16"
    )
    driver = Driver(load_runner(settings, lambda stage, fraction: None))
    _assert_same_bits(driver, [3 + (i * i * 7 + 13 * i) % 190 for i in range(150)])


def _assert_same_bits(driver: Driver, ids: list[int]) -> None:
    """150 ids whole, in chunks, decoded in company, and resumed."""
    whole = driver.whole(ids)
    assert np.array_equal(driver.in_chunks(ids, [1, 63, 2, 40, 44]), whole)
    mine, others = driver.sequence(ids), [driver.sequence(ids[i : i + 70]) for i in range(40)]
    found = [driver.step((others[0], 9), (mine, 100))[1]]
    found += [driver.step(*[(other, 1) for other in others[: i * 4]], (mine, 1))[-1] for i in range(10)]
    driver.free(mine, *others)
    assert np.array_equal(np.concatenate(found), whole[:110])
    first = driver.sequence(ids[:60])
    (logits,) = driver.step((first, 60))
    rows = [logits[-1]]
    for _ in range(12):
        first.ids.append(int(rows[-1].argmax()))
        rows.append(driver.step((first, 1))[0][0])
    driver.free(first)
    assert np.array_equal(driver.whole(list(first.ids))[59:], np.stack(rows))
