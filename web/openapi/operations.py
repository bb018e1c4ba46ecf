"""Every documented operation; a route that is missing here fails a test."""

from __future__ import annotations

from web.openapi import batches, open_inference, openai, service, tgi
from web.openapi.operation import Operation

OPERATIONS: dict[tuple[str, str], Operation] = {
    **tgi.OPERATIONS,
    **openai.OPERATIONS,
    **batches.OPERATIONS,
    **open_inference.OPERATIONS,
    **service.OPERATIONS,
}
"""(path as in the route table, method in lower case) -> what it takes and answers."""

TAGS = {
    tgi.TAG: "Hugging Face's Text Generation Inference, versions 1.3 to 3.",
    openai.TAG: "Chat completions, completions and models as OpenAI's clients know them.",
    batches.TAG: "Files of requests, worked on in the background, as OpenAI's clients know them.",
    open_inference.TAG: "The models are those of the paths; a version is `1`, or a model's revision or commit.",
    service.TAG: "Health, facts, metrics and this documentation.",
}
