"""`tgq watermark`: does a text carry the watermark?"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from common.model_files import ModelNotFound, find_model
from common.tokenizer import Tokenizer
from ops.configuration import Configuration
from ops.watermark_detector import detect_in_text

FOUND, NOT_FOUND, FAILED = 0, 1, 2


def run(configuration: Configuration, file: Path | None, *, threshold: float, as_json: bool) -> int:
    """Print what a text, from a file or standard input, tells.

    Returns:
        The exit status: 0 found, 1 not found, 2 when nothing can be said.
    """
    try:
        text = sys.stdin.read() if file is None else file.read_text(encoding="utf-8")
        tokenizer = Tokenizer(find_model(configuration.settings, weights=False))
        found = detect_in_text(text, tokenizer, configuration.settings)
    except (OSError, ValueError, ModelNotFound) as error:
        print(f"tgq: {error}", file=sys.stderr)
        return FAILED
    marked = found.z >= threshold
    if as_json:
        print(json.dumps({"found": marked, **dataclasses.asdict(found)}))
    else:
        print(
            f"{'watermark found' if marked else 'no watermark found'}: z = {found.z:.2f} (threshold {threshold:g}), "
            f"p = {found.p_value:.2g}, {found.green} of {found.scored} pairs are green"
        )
    return FOUND if marked else NOT_FOUND
