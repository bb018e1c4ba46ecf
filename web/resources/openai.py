"""What OpenAI's generation routes share."""

from __future__ import annotations

import time

from falcon.asgi import Request

from common.protocols.openai_answer import Head
from web.info import TGI_VERSION
from web.models import Chosen

DONE = b"data: [DONE]\n\n"
"""The end of a stream; clients compare the whole line."""


def answer_head(request: Request, prefix: str, chosen: Chosen) -> Head:
    """
    Args:
        prefix: of ids of this kind of answer.
    """
    name = chosen.adapter or chosen.model.id
    return Head(f"{prefix}-{request.context.request_id}", int(time.time()), name, f"{TGI_VERSION}-native")
