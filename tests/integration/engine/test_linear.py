"""Packed layers compute what plain ones do, and a row has the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.integration.engine.processor import needs_few_rows
from workers.engine import linear
from workers.engine.few_rows import MOST_ROWS, Arena
from workers.engine.linear import MklLinear, OneDnnLinear, can_pack, pack, pack_linears
from workers.engine.memory import large_pages


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@torch.inference_mode()
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(960, 576), (576, 1536), (1, 64), (8, 576), (16, 16), (96, 64), (17, 4099), (300, 1000)]
)
def test_rows_do_not_depend_on_how_many_there_are(outputs: int, inputs: int, bias: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    shift = torch.randn(outputs, generator=generator) if bias else None
    layer = pack(weight, shift)
    x = torch.randn(1, 200, inputs, generator=generator)
    whole = layer(x)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if shift is None else shift.double())
    assert torch.allclose(whole.double(), exact, rtol=1e-4, atol=1e-5 * inputs)
    for first, count in [(0, 1), (7, 1), (3, 2), (5, 3), (11, 16), (2, 33), (0, 128)]:
        assert torch.equal(layer(x[:, first : first + count].clone()), whole[:, first : first + count])
    assert layer(x[:, :0]).shape == (1, 0, outputs)


@torch.inference_mode()
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (576, 1536), (8, 576), (192, 4096)])
def test_nor_do_rows_in_bfloat16(outputs: int, inputs: int, threads: int) -> None:
    if not can_pack(torch.bfloat16):
        pytest.skip("no packed product of bfloat16 here")
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(outputs)

    def halves(rows: int, sign: int) -> torch.Tensor:
        half = torch.randn(rows, inputs // 2, generator=generator).bfloat16()
        return torch.cat([half, sign * half.flip(1)], dim=1)

    # What is left of sums that cancel shows the order in which they were made.
    layer, x = pack(halves(outputs, -1), None), halves(200, 1)[None]
    whole = layer(x)
    for first, count in [(0, 1), (7, 2), (5, 16), (2, 33), (60, 64), (0, 128), (1, 199)]:
        assert torch.equal(layer(x[:, first : first + count].clone()), whole[:, first : first + count])


def test_large_layers_and_small_ones_have_each_their_product() -> None:
    assert can_pack(torch.float32)
    assert not can_pack(torch.float16)
    large = MklLinear if linear._mkl_serves() else OneDnnLinear
    assert isinstance(pack(torch.ones(576, 576), None), large)
    assert isinstance(pack(torch.ones(8, 576), None), OneDnnLinear)
    if can_pack(torch.bfloat16):
        assert isinstance(pack(torch.ones(576, 576, dtype=torch.bfloat16), None), OneDnnLinear)


@torch.inference_mode()
@needs_few_rows
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (576, 1536), (1000, 1001), (192, 4096), (70, 1000)])
def test_few_rows_have_the_same_bits_from_their_own_layout(outputs: int, inputs: int, bias: bool, threads: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    shift = torch.randn(outputs, generator=generator) if bias else None
    layer, plain = MklLinear(weight, shift), MklLinear(weight, shift)
    layer.keep_for_few_rows(weight)
    assert layer.copied
    x = torch.randn(1, MOST_ROWS + 1, inputs, generator=generator)
    expected = plain(x)
    for count in range(1, MOST_ROWS + 2):
        for first in {0, 7 % (MOST_ROWS + 2 - count), MOST_ROWS + 1 - count}:
            rows = slice(first, first + count)
            assert torch.equal(layer(x[:, rows]), expected[:, rows]), (first, count)
    # Whatever the shape and the strides.
    assert torch.equal(layer(x[0, 3]), expected[0, 3])
    assert torch.equal(layer(x[0, ::9]), expected[0, ::9])


@torch.inference_mode()
@needs_few_rows
def test_copies_for_few_rows_are_made_of_all_layers_or_of_none() -> None:
    def packed(spare: int) -> list[bool]:
        model = torch.nn.Sequential(*(torch.nn.Linear(n, 512, bias=False) for n in (256, 512)))
        pack_linears(model, spare_bytes=spare)
        return [isinstance(layer, MklLinear) and layer.copied for layer in model]

    size = 4 * 512 * (256 + 512)
    assert packed(size) == [True, True]
    assert packed(size - 1) == [False, False]


def test_an_arena_that_is_used_up_gives_memory_all_the_same() -> None:
    arena = Arena(large_pages(10))
    first, second, third = (arena(5).fill_(i) for i in range(3))
    assert [part.tolist() for part in (first, second, third)] == [[i] * 5 for i in range(3)]
