"""A model folder with nothing but a small tokenizer of the SentencePiece kind, for tests of how its pieces are joined."""

from __future__ import annotations

import json
import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, processors

SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = ["▁The", "▁keeper", "'s", "▁two", "▁clock", "▁min", "▁return", "▁if", "▁▁▁▁", "▁▁"]


def write_sentence_piece_model(folder: Path) -> None:
    """Write a tokenizer as Llama's: spaces are marks, one is put before a text and taken off again when it is decoded,
    characters without a piece are spelled in bytes, and every prompt begins with `<s>`.
    """
    folder.mkdir(parents=True)
    pieces = [(piece, 0.0) for piece in SPECIAL]
    pieces += [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    pieces += [(character, -10.0) for character in f"▁{string.ascii_letters}.,:'"]
    pieces += [(word, -5.0) for word in WORDS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 2048, "eos_token_id": 2}))
