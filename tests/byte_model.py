"""A model folder with nothing but a tiny tokenizer, for tests that need to tokenize."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from common.model_files import default_model_folder
from common.settings import Settings

CONTEXT = 256
EOS = 256
"""Ids 0 to 255 are the pieces of the byte-level alphabet; the end-of-text token follows."""


def write_byte_model(cache: Path, *, chat_template: str | None = None) -> None:
    """Put a byte-level tokenizer without merges where the packaged model would be: one token a byte."""
    folder = default_model_folder(Settings.of(cache_dir=cache))
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT, "eos_token_id": EOS}))
    if chat_template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat_template}))
