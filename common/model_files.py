"""Where a model's files are, and what they say; no torch, so that web processes can read them too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from common.hub_download import Progress, download
from common.settings import DEFAULT_MODEL, SCRIPTED_MODEL, Settings

_SMALL_FILES = ["*.json", "*.model", "*.jinja", "*.txt"]
_WEIGHTS = (["*.safetensors"], ["*.bin"])
"""Kinds of weights, best first; the next is fetched only where the one before is missing."""
_OTHER_FORMATS = ["original/*", "consolidated*"]
"""The same weights once more, as some publishers add them for their own programs."""


class ModelNotFound(Exception):
    """The model named by MODEL_ID has no files here and cannot be fetched."""


@dataclass(frozen=True)
class ModelFiles:
    """A folder in the layout of transformers' `save_pretrained`."""

    model_id: str
    path: Path
    sha: str | None = None

    @cached_property
    def config(self) -> dict[str, Any]:
        return self._read("config.json")

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        return self._read("generation_config.json")

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        return self._read("tokenizer_config.json")

    @property
    def tokenizer_json(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def context_length(self) -> int:
        """Positions the model serves (see the function of this name)."""
        return context_length(self.config)

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / name).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}


def context_length(config: dict[str, Any]) -> int:
    """Positions a model serves, from its configuration; 4096 where that does not say.

    Rotary embeddings of type `dynamic` and `longrope` change for the whole sequence once it outgrows the length the
    model was trained with, and keys computed before would not fit those after: such a model stops at that length.
    """
    text = config.get("text_config") or config
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    length = next((int(text[name]) for name in names if isinstance(text.get(name), int)), 4096)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    # One set of parameters, or one for each kind of layer.
    for parameters in (rope, *rope.values()):
        if isinstance(parameters, dict) and parameters.get("rope_type", parameters.get("type")) in (
            "dynamic",
            "longrope",
        ):
            original = parameters.get("original_max_position_embeddings", text.get("original_max_position_embeddings"))
            length = min(length, original) if isinstance(original, int) else length
    return length


def default_model_folder(settings: Settings) -> Path:
    """The cache folder of the packaged default model once it is converted (see `workers.engine.default_model`)."""
    return settings.cache_dir / "models" / DEFAULT_MODEL.replace("/", "--")


def find_model(settings: Settings, *, weights: bool, progress: Progress | None = None) -> ModelFiles:
    """Find the files of `settings.model_id`: a local folder, the packaged default model, or a hub id.

    Args:
        weights: also fetch the weights when the model is on the hub; web processes only need the tokenizer.
        progress: told the bytes of the weights that are fetched.

    Raises:
        ModelNotFound: says what was looked for and what to do.
    """
    model_id = settings.model_id
    if model_id in (DEFAULT_MODEL, SCRIPTED_MODEL):
        folder = default_model_folder(settings)
        if not (folder / "config.json").exists():
            raise ModelNotFound(
                f"the default model is not in {folder}: run `python -m workers.engine.default_model` where torch is installed"
            )
        return ModelFiles(model_id, folder)
    if (local := _local(model_id, "MODEL_ID")) is not None:
        return ModelFiles(model_id, local)
    try:
        path = _download(settings, _SMALL_FILES + (["*.py"] if settings.trust_remote_code else []))
        for patterns in _WEIGHTS if weights else ():
            path = _download(settings, patterns, _weight_bytes(path), progress)
            if any(match for pattern in patterns for match in path.glob(pattern)):
                break
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFound(f"MODEL_ID {model_id!r} could not be fetched from the hub: {error}") from error
    return ModelFiles(model_id, path, sha=path.name)


def check_model(settings: Settings, *, weights: bool) -> None:
    """See, without the network, that `settings.model_id` may be served: a folder has what it needs, another name could be
    a hub id.

    Args:
        weights: they are needed here, too; those in a GGUF file have the configuration with them.

    Raises:
        ModelNotFound: says what is missing.
    """
    if settings.model_id in (DEFAULT_MODEL, SCRIPTED_MODEL):
        return
    folder = _local(settings.model_id, "MODEL_ID")
    if folder is None:
        return
    missing = [] if (folder / "tokenizer.json").is_file() else ["tokenizer.json"]
    if weights and ((folder / "config.json").is_file() or not any(folder.glob("*.gguf"))):
        missing += [] if (folder / "config.json").is_file() else ["config.json"]
        if not any(match for kind in _WEIGHTS for pattern in kind for match in folder.glob(pattern)):
            missing.append("weights (`*.safetensors` or `*.bin`)")
    if missing:
        raise ModelNotFound(f"MODEL_ID {settings.model_id!r} is a folder without {' and '.join(missing)}")


def find_adapter(settings: Settings, source: str, revision: str | None) -> Path:
    """The folder of a LoRA adapter: a local one, or a hub id that is fetched.

    Raises:
        ModelNotFound: it is neither, or cannot be fetched.
    """
    if (folder := _local(source, "adapter")) is not None:
        return folder
    try:
        return download(
            source,
            revision=revision,
            cache=settings.huggingface_hub_cache,
            patterns=["adapter_config.json", "adapter_model.safetensors"],
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFound(f"adapter {source} is not in the local cache and could not be fetched: {error}") from error


def _local(source: str, what: str) -> Path | None:
    """The folder of this name; None where it can only be a hub id. Raises `ModelNotFound` for what is neither."""
    try:
        folder = Path(source).expanduser()
        if folder.is_dir():
            return folder.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody's home.
        raise ModelNotFound(f"{what} {source!r} cannot be looked at: {error}") from error
    if "/" not in source or source.startswith((".", "/", "~")):
        raise ModelNotFound(f"{what} {source!r} is neither a folder nor a hub id (`owner/name`)")
    return None


def _download(settings: Settings, patterns: list[str], size: int = 0, progress: Progress | None = None) -> Path:
    return download(
        settings.model_id,
        revision=settings.revision,
        cache=settings.huggingface_hub_cache,
        patterns=patterns,
        ignored=_OTHER_FORMATS,
        size=size,
        progress=progress,
    )


def _weight_bytes(path: Path) -> int:
    """Bytes of weights that are spread over several files, as their index says; 0 where there is none."""
    for index in path.glob("*.index.json"):
        try:
            return int(json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0
