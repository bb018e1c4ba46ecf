"""How answers of OpenAI's generation routes begin and end."""

from __future__ import annotations

import time

from common import TGI_VERSION
from common.protocols.openai_answer import Head
from common.served_models import Chosen

DONE = b"[DONE]"
"""The data of the last event of a stream."""


def answer_head(prefix: str, request_id: str, chosen: Chosen) -> Head:
    """
    Args:
        prefix: of ids of this kind of answer.
    """
    return Head(f"{prefix}-{request_id}", int(time.time()), chosen.adapter or chosen.model.id, f"{TGI_VERSION}-native")
