"""What is seen of a model before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.model_files import ModelNotFound, check_model
from common.settings import DEFAULT_MODEL, Settings


@pytest.mark.parametrize("name", ["/nope", "./nope", "nope"])
def test_what_is_no_folder_and_no_hub_id_is_refused(name: str) -> None:
    with pytest.raises(ModelNotFound, match=f"^MODEL_ID '{name}' is neither a folder nor a hub id"):
        check_model(Settings.of(model_id=name), weights=True)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/model", "/" + 300 * "x"])
def test_what_cannot_be_looked_at_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ModelNotFound, match=f"^MODEL_ID '{name}' cannot be looked at: "):
        check_model(Settings.of(model_id=name), weights=True)


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "scripted", "owner/name"])
def test_names_that_may_be_models_pass_without_the_network(name: str) -> None:
    check_model(Settings.of(model_id=name), weights=True)


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ([], "tokenizer.json and config.json and weights (`*.safetensors` or `*.bin`)"),
        (["config.json", "tokenizer.json"], "weights (`*.safetensors` or `*.bin`)"),
        (["config.json", "tokenizer.json", "model.safetensors"], None),
        (["config.json", "tokenizer.json", "model.gguf"], "weights (`*.safetensors` or `*.bin`)"),
        (["model.gguf"], "tokenizer.json"),
        (["model.gguf", "tokenizer.json"], None),
    ],
)
def test_a_folder_has_what_a_model_needs(tmp_path: Path, files: list[str], missing: str | None) -> None:
    for name in files:
        (tmp_path / name).touch()
    settings = Settings.of(model_id=str(tmp_path))
    if missing is None:
        check_model(settings, weights=True)
        return
    with pytest.raises(ModelNotFound) as refused:
        check_model(settings, weights=True)
    assert str(refused.value) == f"MODEL_ID '{tmp_path}' is a folder without {missing}"


def test_a_web_node_needs_the_tokenizer_alone(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    check_model(Settings.of(model_id=str(tmp_path)), weights=False)
