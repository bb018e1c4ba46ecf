"""What cannot be served is refused while loading, with a message that says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from common.model_files import ModelNotFound, context_length
from common.settings import Settings
from workers.engine.attention import ModelRefused
from workers.engine.model_loader import engine_threads, load_runner
from workers.engine.model_runner import TransformersRunner

TINY: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}


def _save(folder: Path, family: str, **options: Any) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**TINY, **options})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)  # type: ignore[no-untyped-call]


@pytest.fixture
def load(model_folder: Path) -> Callable[..., TransformersRunner]:
    def load(**options: Any) -> TransformersRunner:
        settings = Settings.of(model_id=str(model_folder), engine_threads=1, device="cpu", **options)
        return load_runner(settings, lambda stage, fraction: None)

    return load


def test_an_encoder_decoder_model(model_folder: Path, load: Callable[..., TransformersRunner]) -> None:
    AutoConfig.for_model("t5").save_pretrained(model_folder)
    with pytest.raises(ModelRefused, match=r"encoder-decoder model \(t5\)"):
        load()


def test_a_model_that_writes_no_text(model_folder: Path, load: Callable[..., TransformersRunner]) -> None:
    AutoConfig.for_model("vit").save_pretrained(model_folder)
    with pytest.raises(ModelRefused, match=r"type vit, which transformers has no causal language model for"):
        load()


def test_a_model_without_weights(model_folder: Path, load: Callable[..., TransformersRunner]) -> None:
    AutoConfig.for_model("llama", **TINY).save_pretrained(model_folder)
    with pytest.raises(ModelRefused, match="could not be loaded"):
        load()


def test_a_folder_without_a_model(model_folder: Path, load: Callable[..., TransformersRunner]) -> None:
    model_folder.mkdir()
    with pytest.raises(ModelRefused, match=r"no config\.json and 0 GGUF files"):
        load()


def test_no_folder_and_no_hub_id(load: Callable[..., TransformersRunner]) -> None:
    with pytest.raises(ModelNotFound, match="neither a folder nor a hub id"):
        load()


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("mamba", {"state_size": 4}),  # no attention at all
        ("bloom", {"n_head": 4, "n_layer": 2}),  # position biases instead of positions
        ("bert", {}),  # sees what comes after
    ],
)
def test_a_model_the_engine_does_not_know(
    family: str, options: dict[str, Any], model_folder: Path, load: Callable[..., TransformersRunner]
) -> None:
    _save(model_folder, family, **options)
    with pytest.raises(ModelRefused):
        load(max_batch_total_tokens=1024)


def test_limits_that_do_not_fit(model_folder: Path, load: Callable[..., TransformersRunner]) -> None:
    _save(model_folder, "llama")
    with pytest.raises(ModelRefused, match=r"MAX_TOTAL_TOKENS \(257\) is more than the model's context of 256 tokens"):
        load(max_total_tokens=257)
    with pytest.raises(ModelRefused, match=r"MAX_TOTAL_TOKENS \(200\) is more than MAX_BATCH_TOTAL_TOKENS \(100\)"):
        load(max_total_tokens=200, max_batch_total_tokens=100)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelRefused, match="no GPU"):
        load_runner(Settings.of(device="cuda"), lambda stage, fraction: None)


def test_what_limits_default_to(model_folder: Path, load: Callable[..., TransformersRunner]) -> None:
    _save(model_folder, "llama")
    stages: list[tuple[str, float]] = []
    settings = Settings.of(model_id=str(model_folder), engine_threads=1, device="cpu")
    runner = load_runner(settings, lambda stage, fraction: stages.append((stage, fraction)))
    assert runner.card.max_total_tokens == 256
    assert runner.card.max_batch_size == 64
    # As much as 64 sequences can ever use, since the memory has room for more.
    assert runner.card.max_batch_total_tokens == 64 * 256 == (runner.num_blocks - 1) * runner.block_size
    assert (runner.card.dtype, runner.card.device_type, runner.vocab_size) == ("torch.float32", "cpu", 99)
    fractions = [fraction for _, fraction in stages]
    assert fractions == sorted(fractions)
    # It has computed before it is ready.
    assert stages[-2:] == [("warming up: checking the engine against the model", 0.9), ("ready", 1.0)]
    assert load(max_batch_total_tokens=100).card.max_total_tokens == 100


def test_half_precision_on_request(model_folder: Path, load: Callable[..., TransformersRunner]) -> None:
    _save(model_folder, "llama")
    assert load(dtype="bfloat16", max_batch_total_tokens=512).card.dtype == "torch.bfloat16"


def test_threads_are_shared_between_the_workers() -> None:
    assert engine_threads(Settings.of(engine_threads=7)) == 7
    assert engine_threads(Settings.of(workers=1000)) == 1


def test_rotary_embeddings_that_change_with_length_end_the_context() -> None:
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert context_length({"max_position_embeddings": 131072, "rope_parameters": rope}) == 4096
    assert context_length({"max_position_embeddings": 131072, "rope_scaling": {"type": "linear"}}) == 131072
    assert context_length({"n_positions": 1024}) == 1024
    assert context_length({"text_config": {"max_position_embeddings": 77}}) == 77
    assert context_length({}) == 4096
