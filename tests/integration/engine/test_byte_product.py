"""Few rows of bytes: the sums are those of integers, and a layer has the same bits with this product and without."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from workers.engine.byte_product import MOST_ROWS, ByteProduct, serves
from workers.engine.quantize import Activations, QuantizedLinear

ZERO_POINT = 128
needs_instruction = pytest.mark.skipif(not serves(64), reason="this processor has no such product (AVX-512 VNNI)")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@needs_instruction
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (17, 64), (1, 4), (49, 1536), (16, 12), (33, 8)])
def test_sums_are_exact(outputs: int, inputs: int, largest: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = np.random.default_rng(outputs)
    weight = generator.integers(-127, 128, (outputs, inputs), dtype=np.int8)
    given = generator.integers(0, 256, (40, inputs), dtype=np.uint8)
    if largest:
        # Where products are summed in 16 bits, these overflow.
        weight[::2], weight[1::2] = 127, -127
        given[::3], given[1::3] = 255, 0
    scale = generator.uniform(0.001, 0.1, outputs).astype(np.float32)
    product = ByteProduct(torch.from_numpy(weight), torch.from_numpy(scale), ZERO_POINT)
    exact = (given.astype(np.int64) - ZERO_POINT) @ weight.astype(np.int64).T
    expected = exact.astype(np.float32) * scale
    for rows in (*range(1, MOST_ROWS + 2), 40):
        for first in {0, 40 - rows}:
            found = product(torch.from_numpy(given[first : first + rows]))
            assert np.array_equal(found.numpy(), expected[first : first + rows]), (rows, first)


@torch.inference_mode()
@needs_instruction
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (576, 1536), (17, 64), (1, 4)])
def test_a_second_copy_changes_no_bit(outputs: int, inputs: int, bias: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    shift = torch.randn(outputs, generator=generator) if bias else None
    copied, plain = (QuantizedLinear(weight, shift, Activations(), second_copy=copy) for copy in (True, False))
    assert copied._few_rows is not None
    assert plain._few_rows is None
    x = torch.randn(1, 20, inputs, generator=generator)
    whole = plain(x)
    for tokens in range(1, 21):
        for first in {0, 20 - tokens}:
            rows = x[:, first : first + tokens].clone()
            assert torch.equal(copied(rows), whole[:, first : first + tokens]), (tokens, first)
            assert torch.equal(plain(rows), whole[:, first : first + tokens]), (tokens, first)


@torch.inference_mode()
def test_inputs_that_make_no_whole_steps_are_left_to_the_other_product() -> None:
    assert not serves(66)
    weight, x = torch.linspace(-1, 1, 30 * 66).sin().view(30, 66), torch.linspace(0, 9, 3 * 66).cos().view(1, 3, 66)
    copied, plain = (QuantizedLinear(weight, None, Activations(), second_copy=copy) for copy in (True, False))
    assert copied._few_rows is None
    assert torch.equal(copied(x), plain(x))
