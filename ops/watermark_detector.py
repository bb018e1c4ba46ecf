"""Looks for the service's watermark in a text."""

from __future__ import annotations

from common.parameters import Watermark
from common.settings import Settings
from common.tokenizer import Tokenizer
from workers.engine.watermark import Detection, detect


def detect_in_text(text: str, tokenizer: Tokenizer, settings: Settings) -> Detection:
    """The traces of a watermark, made with the same model, gamma and key, in an answer or a text that holds one.

    The text is tokenized anew, which gives nearly the ids that were generated. Words that were changed cost about two
    pairs each.

    Raises:
        ValueError: the text has fewer than two tokens.
    """
    watermark = Watermark(settings.watermark_gamma, settings.watermark_delta, settings.watermark_key)
    return detect(watermark, tokenizer.ids(text, add_special_tokens=False))
