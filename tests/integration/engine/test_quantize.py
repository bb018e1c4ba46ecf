"""8-bit weights on CPU: close to the model, and the same bits in any company; other kinds say what they miss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from common.settings import Settings
from ops.tiny_models import tiny_options
from tests.integration.engine.processor import needs_int8
from workers.engine import quantize, quantized_weights
from workers.engine.attention import ModelRefused
from workers.engine.model_loader import load_runner
from workers.engine.model_runner import TransformersRunner
from workers.engine.quantize import Activations, QuantizedLinear, int8_obstacle, quantize_rows
from workers.engine.quantized_weights import loading_options
from workers.engine.random_model import write_random_model
from workers.engine.self_check import check_quantization

if TYPE_CHECKING:
    from tests.integration.engine.conftest import Driver

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def quantized() -> TransformersRunner:
    settings = Settings.of(engine_threads=1, max_batch_total_tokens=16_384, device="cpu", quantize="int8")
    return load_runner(settings, lambda stage, fraction: None)


@pytest.fixture
def int8_driver(quantized: TransformersRunner) -> Driver:
    from tests.integration.engine.conftest import Driver

    return Driver(quantized)


@torch.inference_mode()
def test_two_digits_hold_fifteen_bits_of_an_activation() -> None:
    x = torch.randn(7, 5, 64, generator=torch.Generator().manual_seed(1))
    x[:, :, 3] *= 100  # a large channel, as language models have
    x[2, 2] = 0
    digits, scales = quantize_rows(x)
    rows, high, low = x.view(35, 64).numpy(), digits[0].float().numpy(), digits[1].float().numpy()
    found = scales[:, None] * (high - 128 + (low - 128) / 256)
    assert np.abs((found - rows) / scales[:, None]).max() < 1 / 500
    assert np.abs(found[12]).max() < 1e-9


@torch.inference_mode()
@needs_int8
def test_a_row_is_exact_whatever_the_others_are() -> None:
    generator = torch.Generator().manual_seed(2)
    weight, bias = torch.randn(96, 160, generator=generator), torch.randn(96, generator=generator)
    layer = QuantizedLinear(weight, bias, Activations())
    x = torch.randn(1, 70, 160, generator=generator)
    whole = layer(x)
    # The weights' rounding is a uniform error of at most half a step.
    expected = x @ weight.t() + bias
    assert float((whole - expected).std() / expected.std()) < 0.01
    for first, count in [(0, 1), (5, 2), (3, 17), (1, 64)]:
        assert torch.equal(layer(x[:, first : first + count].clone()), whole[:, first : first + count])
    assert layer(x[:, :0]).shape == (1, 0, 96)


def test_one_input_is_quantized_once() -> None:
    activations = Activations()
    x = torch.ones(1, 2, 8)
    first = activations.quantize(x)
    assert activations.quantize(x) is first
    assert activations.quantize(x.clone()) is not first
    activations.forget()
    assert activations.quantize(x) is not first


@needs_int8
def test_the_default_model_in_8_bits(int8_driver: Driver, driver: Driver, prose: list[int]) -> None:
    ids = prose[:300]
    exact, found = driver.whole(ids), int8_driver.whole(ids)

    def logprobs(logits: Any) -> Any:
        return torch.log_softmax(torch.from_numpy(logits), -1)

    p, q = logprobs(exact), logprobs(found)
    divergence = float((p.exp() * (p - q)).sum(-1).mean())
    assert divergence < 0.02
    following = torch.tensor(ids[1:])[:, None]
    loss = [float(-x[:-1].gather(1, following).mean()) for x in (p, q)]
    assert abs(loss[1] - loss[0]) < 0.02


@needs_int8
@pytest.mark.parametrize("threads", [1, 2])
def test_chunks_and_company_change_no_bit(int8_driver: Driver, prose: list[int], threads: int) -> None:
    torch.set_num_threads(threads)
    ids = prose[:122]
    whole = int8_driver.whole(ids)
    assert np.array_equal(int8_driver.in_chunks(ids, [1, 63, 2, 52, 1]), whole)
    mine, other = int8_driver.sequence(ids), int8_driver.sequence(prose[200:260])
    found = [int8_driver.step((other, 9), (mine, 100))[1]]
    found += [int8_driver.step((mine, 1), (other, 1))[0] for _ in range(12)]
    found += int8_driver.step((mine, 10))
    assert np.array_equal(np.concatenate(found), whole)


@needs_int8
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "phi", "qwen3", "jetmoe"])
def test_other_families_in_8_bits(family: str, model_folder: Path) -> None:
    write_random_model(model_folder, family, tiny_options(family))
    settings = Settings.of(
        model_id=str(model_folder), engine_threads=1, max_batch_total_tokens=1024, device="cpu", quantize="int8"
    )
    assert load_runner(settings, lambda stage, fraction: None).card.dtype == "torch.float32"


@needs_int8
def test_a_processor_that_cannot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert int8_obstacle() is None

    def saturating(*arguments: Any) -> Any:
        return product(*arguments).clamp_(-32768, 32767)

    product = quantize._product
    monkeypatch.setattr(quantize, "_product", saturating)
    assert "not exact" in (int8_obstacle() or "")

    def missing(*_: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(quantize, "_product", missing)
    with pytest.raises(ModelRefused, match=r"QUANTIZE=int8 cannot be served here: .* no product of int8 .*no kernel"):
        _options("int8", CPU)


def test_a_model_that_8_bits_spoil_is_refused() -> None:
    exact = np.random.default_rng(0).normal(size=(24, 99)).astype(np.float32)
    check_quantization(exact * 1.05, exact)
    with pytest.raises(ModelRefused, match=r"off by 50% of their spread"):
        check_quantization(exact * 1.5, exact)
    with pytest.raises(ModelRefused, match="off by"):
        check_quantization(exact * np.float32("nan"), exact)


def _options(
    kind: str | None, device: torch.device, dtype: torch.dtype = torch.float32, stored: str | None = None
) -> dict[str, Any]:
    config = LlamaConfig()
    if stored is not None:
        config.quantization_config = {"quant_method": stored}
    return loading_options(Settings.of(model_id="m", quantize=kind), config, device, dtype)


@pytest.mark.parametrize(
    ("kind", "device", "dtype", "stored", "message"),
    [
        ("int8", CUDA, torch.float16, None, "QUANTIZE=int8 is for CPU"),
        ("int8", CPU, torch.bfloat16, None, "computes between its layers in float32, and DTYPE is torch.bfloat16"),
        ("bitsandbytes", CPU, torch.float32, None, "with bitsandbytes need a GPU; on CPU QUANTIZE can be int8"),
        (None, CPU, torch.float32, "gptq", "with gptq need a GPU"),
        ("gptq", CUDA, torch.float16, None, "weights of m are not stored so"),
        ("awq", CUDA, torch.float16, "gptq", "QUANTIZE is awq, and the weights of m are stored as gptq"),
        ("int8", CPU, torch.float32, "gptq", "QUANTIZE is int8, and the weights of m are stored as gptq"),
    ],
)
def test_kinds_that_do_not_suit(
    kind: str | None, device: torch.device, dtype: torch.dtype, stored: str | None, message: str
) -> None:
    with pytest.raises(ModelRefused, match=message):
        _options(kind, device, dtype, stored)


@pytest.mark.parametrize(
    ("kind", "stored", "package"),
    [
        ("bitsandbytes-nf4", None, "bitsandbytes"),
        ("gptq", "gptq", "gptqmodel"),
        (None, "awq", "gptqmodel"),
        ("compressed-tensors", "compressed-tensors", "compressed-tensors"),
        ("torchao", None, "torchao"),
    ],
)
def test_packages_that_are_missing_are_named(
    kind: str | None, stored: str | None, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelRefused, match=f"need the package {package}: install it"):
        _options(kind, CUDA, torch.float16, stored)


def test_what_transformers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized_weights, "_PACKAGES", {})
    assert _options(None, CPU) == {}
    assert _options("gptq", CUDA, torch.float16, "gptq") == {}
    four = _options("bitsandbytes-nf4", CUDA, torch.bfloat16)["quantization_config"]
    assert (four.load_in_4bit, four.bnb_4bit_quant_type) == (True, "nf4")
    assert four.bnb_4bit_compute_dtype == torch.bfloat16
    assert _options("bitsandbytes", CUDA)["quantization_config"].load_in_8bit is True
    assert json.loads(_options("fp8", CUDA)["quantization_config"].to_json_string())["quant_method"] == "fp8"
