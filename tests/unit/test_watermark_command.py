"""`tgq watermark` on texts with and without the mark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from common.model_files import ModelFiles, default_model_folder
from common.parameters import Watermark
from common.settings import Settings
from common.tokenizer import Tokenizer
from ops.cli import app
from ops.watermark_detector import detect_in_text
from tests.byte_model import write_byte_model
from workers.engine.watermark import green

LETTERS = "abcdefghijklmnopqrstuvwxyz ,."


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    write_byte_model(tmp_path)
    return tmp_path


@pytest.fixture
def tokenizer(cache: Path) -> Tokenizer:
    return Tokenizer(ModelFiles("default", default_model_folder(Settings.of(cache_dir=cache))))


def text_of(tokenizer: Tokenizer, watermark: Watermark | None, length: int = 300) -> str:
    """Random letters, green ones where there are any."""
    random = np.random.default_rng(5)
    ids = np.array([tokenizer.ids(letter)[0] for letter in LETTERS], dtype=np.uint32)
    text = [random.choice(ids)]
    for _ in range(length):
        choices = ids if watermark is None else ids[green(watermark, int(text[-1]), ids)]
        text.append(random.choice(choices if len(choices) else ids))
    return tokenizer.decode([int(token) for token in text])


def test_found_and_not_found(tokenizer: Tokenizer) -> None:
    settings = Settings.of(watermark_key=7, watermark_gamma=0.25)
    mine = Watermark(0.25, key=7)
    assert detect_in_text(text_of(tokenizer, mine), tokenizer, settings).z > 10
    assert abs(detect_in_text(text_of(tokenizer, None), tokenizer, settings).z) < 4
    assert abs(detect_in_text(text_of(tokenizer, Watermark(0.25, key=8)), tokenizer, settings).z) < 4


def test_the_command(tokenizer: Tokenizer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TGQ_CACHE_DIR", str(cache))
    command = CliRunner()
    marked = cache / "marked.txt"
    marked.write_text(text_of(tokenizer, Watermark()), encoding="utf-8")
    found = command.invoke(app, ["watermark", str(marked), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["found"] is True
    plain = command.invoke(app, ["watermark"], input=text_of(tokenizer, None))
    assert (plain.exit_code, plain.stdout[:18]) == (1, "no watermark found")
    assert command.invoke(app, ["watermark", str(cache / "missing")]).exit_code == 2
    assert command.invoke(app, ["watermark"], input="").exit_code == 2
