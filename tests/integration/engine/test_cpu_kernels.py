"""The kernels between products on CPU, against their definitions: exact enough, row by row, and honest about NaN."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import numpy.typing as npt
import pytest
import torch
from numba.core import caching
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tests.integration.engine.processor import needs_few_rows
from workers.engine import byte_product, cpu_compile, cpu_kernels, cpu_threads, cpu_tiles
from workers.engine.cpu_compile import compiled
from workers.engine.linear import MklLinear
from workers.engine.quantize import Activations, QuantizedLinear

Array = npt.NDArray[np.float32]
Exact = npt.NDArray[np.float64]
Kernel = Callable[[Array], Array]

WIDTHS = [16, 64, 576, 1, 17, 100, 1001]
COUNTS = [1, 2, 7, 33]
EPSILON = np.float32(1e-5)
OFFSET = np.float32(128.5 + 0.5 / 256)
needs_threads = pytest.mark.skipif(not cpu_threads.AVAILABLE, reason="torch has no OpenMP library of its own here")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


def _random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _rms_norm(x: Array) -> Array:
    out = np.full_like(x, 7)
    cpu_kernels.rms_norm(x, _random(x.shape[1], seed=1), EPSILON, out)
    return out


def _add_rms_norm(x: Array) -> Array:
    """Of rows with twice the width: what is added lies beside. The sums lie beside the norm."""
    sums, more = (half.copy() for half in np.split(x, 2, axis=1))
    out = np.full_like(sums, 7)
    cpu_kernels.add_rms_norm(sums, more, _random(sums.shape[1], seed=1), EPSILON, out)
    return np.concatenate([sums, out], axis=1)


def _silu_product(x: Array) -> Array:
    out = np.full((len(x), x.shape[1] // 2), 7, dtype=np.float32)
    cpu_kernels.silu_product(x, out)
    return out


def _quantize_rows(x: Array) -> Array:
    """The digits and the scale, side by side."""
    high, low = (np.full(x.shape, 7, dtype=np.uint8) for _ in range(2))
    scale = np.full(len(x), 7, dtype=np.float32)
    cpu_kernels.quantize_rows(x, OFFSET, high, low, scale)
    return np.concatenate([high.astype(np.float32), low.astype(np.float32), scale[:, None]], axis=1)


def _join_digits(x: Array) -> Array:
    """Of rows with twice the width and one more: the products of the digits, and the scale."""
    products = np.stack(np.split(x[:, :-1], 2, axis=1))
    cpu_kernels.join_digits(products, x[:, -1].copy())
    joined: Array = products[0]
    return joined


def _rotate(x: Array) -> Array:
    """Of rows of 3 heads, then cosines and sines, each as wide as a head."""
    heads, cosine, sine = np.split(x, [3 * x.shape[1] // 5, 4 * x.shape[1] // 5], axis=1)
    rotated = heads.reshape(len(x), 3, -1).copy()
    cpu_kernels.rotate(rotated, cosine.copy(), sine.copy(), 2)
    return rotated.reshape(len(x), -1)


def _exact_norm(x: Exact) -> Exact:
    norm: Exact = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + float(EPSILON))
    return norm * _random(x.shape[1], seed=1).astype(np.float64)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_norms_are_what_they_are_defined_to_be(count: int, width: int) -> None:
    x, more = _random(count, width), _random(count, width, seed=2)
    np.testing.assert_allclose(_rms_norm(x), _exact_norm(x.astype(np.float64)), rtol=2e-6)
    found = _add_rms_norm(np.concatenate([x, more], axis=1))
    assert np.array_equal(found[:, :width], x + more)
    np.testing.assert_allclose(found[:, width:], _exact_norm((x + more).astype(np.float64)), rtol=2e-6)
    # A row of zeros is divided by no zero.
    assert not _rms_norm(np.zeros_like(x)).any()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_silu_is_what_it_is_defined_to_be(count: int, width: int) -> None:
    x = 4 * _random(count, 2 * width)
    gate, up = (torch.from_numpy(half) for half in np.split(x.astype(np.float64), 2, axis=1))
    np.testing.assert_allclose(_silu_product(x), (torch.nn.functional.silu(gate) * up).numpy(), rtol=1e-6)


def test_silu_over_the_whole_range() -> None:
    edges = [-3.4e38, -1e30, -1000, -90, -89, -88.5, -88, -87.4, -87, -0.0, 0.0, 1e-30, 87, 88, 89, 90, 1e30, 3.4e38]
    gate = np.concatenate([edges, np.linspace(-100, 100, 20_001)]).astype(np.float32)
    found = _silu_product(np.stack([np.concatenate([gate, np.ones_like(gate)])]))[0]
    exact = torch.nn.functional.silu(torch.from_numpy(gate).double()).numpy()
    # Where the exponential is larger than numbers in float32 can be, nothing is left.
    np.testing.assert_allclose(found, exact, rtol=6e-7, atol=1e-36)
    assert np.array_equal(np.signbit(found), np.signbit(gate))


def test_silu_of_what_is_no_finite_number() -> None:
    special = [np.nan, np.inf, -np.inf, np.inf, 1.0, 1.0, 0.0]
    factors = [1.0, 1.0, 1.0, -1.0, np.inf, np.nan, np.inf]
    with torch.inference_mode():
        expected = torch.nn.functional.silu(torch.tensor(special)) * torch.tensor(factors)
    for width in (7, 112):  # alone, and in whole registers
        gate, up = (np.resize(np.array(numbers, dtype=np.float32), width) for numbers in (special, factors))
        found = _silu_product(np.stack([np.concatenate([gate, up])]))[0]
        assert np.array_equal(found, np.resize(expected.numpy(), width), equal_nan=True)


@pytest.mark.parametrize("width", [16, 64, 6, 50])
@pytest.mark.parametrize("count", COUNTS)
def test_rotation_is_that_of_transformers(count: int, width: int) -> None:
    heads = _random(count, 6, width)
    cosine, sine = _random(count, width, seed=1), _random(count, width, seed=2)
    query, key = (torch.from_numpy(part)[None].double().transpose(1, 2) for part in np.split(heads[:, :5], [3], axis=1))
    given = (torch.from_numpy(part)[None].double() for part in (cosine, sine))
    expected = torch.cat(apply_rotary_pos_emb(query, key, *given), dim=1)[0].transpose(0, 1)
    rotated = heads.copy()
    cpu_kernels.rotate(rotated, cosine, sine, 5)
    np.testing.assert_allclose(rotated[:, :5], expected.numpy(), rtol=1e-6, atol=1e-6)
    assert np.array_equal(rotated[:, 5], heads[:, 5])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_digits_hold_a_row_to_half_of_the_last(count: int, width: int) -> None:
    x = (_random(count, width) * 10.0 ** (np.arange(count)[:, None] - 20)).astype(np.float32)
    x[count // 2] = 0
    found = _quantize_rows(x)
    high, low, scale = found[:, :width], found[:, width : 2 * width], found[:, -1].astype(np.float64)
    np.testing.assert_allclose(scale, np.abs(x).max(axis=1) / 127 + 1e-30, rtol=2e-7)
    digits = (high - 128.0) + (low - 128.0) / 256
    assert np.abs(digits - x / scale[:, None]).max() <= 0.51 / 256
    assert not digits[count // 2].any()
    products = np.concatenate([high - 128, low - 128, found[:, -1:]], axis=1)
    np.testing.assert_allclose(_join_digits(products), digits * scale[:, None], rtol=3e-7)


KERNELS: list[tuple[Kernel, int, int]] = [
    (_rms_norm, 1, 0),
    (_add_rms_norm, 2, 0),
    (_silu_product, 2, 0),
    (_quantize_rows, 1, 0),
    (_join_digits, 2, 1),
    (_rotate, 10, 0),
]
"""Each with what its rows are a multiple of, and how much wider than that."""


@pytest.mark.parametrize(("kernel", "times", "more"), KERNELS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_has_the_same_bits_in_any_company_and_place(kernel: Kernel, times: int, more: int, width: int) -> None:
    x = _random(33, times * width + more, seed=3)
    whole = kernel(x)
    for row in range(33):
        assert np.array_equal(kernel(x[row : row + 1].copy())[0], whole[row]), row
    for first, count in [(5, 2), (1, 7), (20, 13)]:
        assert np.array_equal(kernel(x[first : first + count].copy()), whole[first : first + count])
    assert np.array_equal(kernel(x[::-1].copy()), whole[::-1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 40])
@pytest.mark.parametrize(("kernel", "times"), [(_rms_norm, 1), (_add_rms_norm, 2), (_silu_product, 2)])
def test_what_is_no_finite_number_spoils_its_row_alone(kernel: Kernel, times: int, place: int, bad: float) -> None:
    x = _random(7, times * 41, seed=4)
    expected = kernel(x)
    x[3, place] = bad
    found = kernel(x)
    assert np.array_equal(np.delete(found, 3, axis=0), np.delete(expected, 3, axis=0))
    if kernel is _silu_product:
        assert not np.isfinite(found[3, place])
        assert np.array_equal(np.delete(found[3], place), np.delete(expected[3], place))
        return
    if kernel is _add_rms_norm:
        assert np.array_equal(found[3, place : place + 1], x[3, place : place + 1], equal_nan=True)
    norm = found[3, -41:]
    # The norm's divisor is that number, too: nothing is left of the others.
    assert np.isnan(norm[place])
    assert np.isnan(norm).all() if np.isnan(bad) else not np.delete(norm, place).any()


@torch.inference_mode()
@pytest.mark.parametrize("second_copy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_layer_in_8_bits_hides_no_nan(bad: float, bias: bool, second_copy: bool) -> None:
    weight = torch.from_numpy(_random(70, 64))
    weight[5] = 0
    shift = torch.from_numpy(_random(70, seed=1)) if bias else None
    layer = QuantizedLinear(weight, shift, Activations(), second_copy=second_copy)
    for count in (1, 7, 33):
        x = torch.from_numpy(_random(count, 64, seed=2))[None]
        expected = layer(x).numpy()[0]
        assert np.isfinite(expected).all()
        row = count // 2
        for place in (0, 63):
            spoiled = x.clone()
            spoiled[0, row, place] = bad
            found = layer(spoiled).numpy()[0]
            assert not np.isfinite(found[row]).any()
            assert np.array_equal(np.delete(found, row, axis=0), np.delete(expected, row, axis=0))


@torch.inference_mode()
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nor_does_one_in_float32(bad: float) -> None:
    weight = torch.from_numpy(_random(200, 1000))
    layer = MklLinear(weight, None)
    layer.keep_for_few_rows(weight)
    for count in (1, 2, 7, 32, 33):
        x = torch.from_numpy(_random(count, 1000, seed=2))
        expected = layer(x).numpy()
        x[count // 2, 500] = bad
        found = layer(x).numpy()
        assert not np.isfinite(found[count // 2]).any()
        assert np.array_equal(np.delete(found, count // 2, axis=0), np.delete(expected, count // 2, axis=0))


def _mark(arguments: Any) -> None:
    """Counts its thread, and says how many it knows of."""
    table = numba.carray(arguments, (2, 8))
    number = cpu_threads.thread_number()
    table[0, number] += 1
    table[1, number] = cpu_threads.thread_count()


def _region(body: int, table: Any, threads: int) -> None:
    cpu_threads.parallel(body, table.ctypes, threads, 0)


@needs_threads
def test_a_region_has_each_of_its_threads_once_and_they_are_torchs() -> None:
    torch.set_num_threads(2)
    x = torch.ones(1 << 20)
    assert float((x + x).mean()) == 2  # torch has started its threads
    body, region = cpu_threads.thread_body(_mark), compiled(_region)

    def run(threads: int) -> list[list[int]]:
        table = np.zeros((2, 8), dtype=np.intp)
        region(body, table, threads)
        found: list[list[int]] = table.tolist()
        return found

    run(1)
    before = set(Path("/proc/self/task").iterdir())
    for _ in range(50):
        for threads in (1, 2):
            rest = [0] * (8 - threads)
            assert run(threads) == [[1] * threads + rest, [threads] * threads + rest]
        x.add_(x)
    assert set(Path("/proc/self/task").iterdir()) <= before
    for threads in (3, 8):
        assert run(threads) == [[1] * threads + [0] * (8 - threads), [threads] * threads + [0] * (8 - threads)]


@torch.inference_mode()
@needs_few_rows
def test_without_torchs_threads_the_other_products_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.from_numpy(_random(200, 1000)), torch.from_numpy(_random(5, 1000, seed=1))

    def products() -> tuple[bool, bool, torch.Tensor, torch.Tensor]:
        layer, quantized = MklLinear(weight, None), QuantizedLinear(weight, None, Activations(), second_copy=True)
        layer.keep_for_few_rows(weight)
        return layer.copied, quantized._few_rows is not None, layer(x), quantized(x)

    with_threads = products()
    assert with_threads[:2] == (True, byte_product.serves(1000))
    monkeypatch.setattr(cpu_threads, "AVAILABLE", False)
    without = products()
    assert without[:2] == (False, byte_product.serves(1000)) == (False, False)
    assert torch.equal(without[2], with_threads[2])
    assert torch.equal(without[3], with_threads[3])


def _total(x: Array) -> Any:
    total = np.float32(0)
    for value in x:
        total += value
    return total


@needs_threads
def test_kernels_need_no_folder_for_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where neither the code's folder nor the user's can be written to.
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache function"):
        numba.njit(cache=True)(_total)
    assert compiled(_total)(np.arange(10, dtype=np.float32)) == 45
    table = np.zeros((2, 8), dtype=np.intp)
    compiled(_region)(cpu_threads.thread_body(_mark), table, 2)
    assert table[0].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


@needs_threads
def test_code_on_disk_is_used_until_a_file_of_kernels_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(caching.config, "CACHE_DIR", str(tmp_path))

    def count() -> int:
        """Indices of compiled code, after both kinds of kernels were compiled."""
        assert compiled(_total)(np.arange(10, dtype=np.float32)) == 45
        cpu_threads.thread_body(_mark)
        return len(list(tmp_path.glob("**/*.nbi")))

    assert [count(), count()] == [2, 2]
    changed = tmp_path / "cpu_changed.py"
    changed.write_text("", encoding="utf-8")
    monkeypatch.setattr(cpu_compile, "_SOURCES", [*cpu_compile._SOURCES[1:], changed])
    assert [count(), count()] == [4, 4]


_FEW_ROWS = """
import sys
import torch
from workers.engine import byte_product, cpu_tiles
from workers.engine.few_rows import FewRows

generator = torch.Generator().manual_seed(1)
weight, bias, x = (torch.randn(*shape, generator=generator) for shape in ((70, 1000), (70,), (33, 1000)))
exact = x.double() @ weight.double().T + bias.double()
for threads in (1, 2):
    torch.set_num_threads(threads)
    product = FewRows(weight, bias)
    whole = product(x)
    assert torch.allclose(whole.double(), exact, rtol=1e-5, atol=1e-4)
    for count in range(1, 33):
        for first in {0, 7 % (34 - count), 33 - count}:
            assert torch.equal(product(x[first : first + count]), whole[first : first + count]), (count, first)
print(cpu_tiles.LANES, cpu_tiles.SUMS, byte_product.serves(64))
"""


@needs_threads
def test_registers_of_another_width_have_code_of_their_own(tmp_path: Path) -> None:
    features = llvmlite.binding.get_host_cpu_features()
    features.update({name: False for name in features if name.startswith("avx512")})
    # Both find the other's code on disk.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for more, expected in [
        ({}, f"{cpu_tiles.LANES} {cpu_tiles.SUMS} {byte_product.serves(64)}\n"),
        ({"NUMBA_CPU_FEATURES": features.flatten()}, "8 8 False\n"),
    ]:
        command = [sys.executable, "-c", _FEW_ROWS]
        done = subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
