"""Refuses jobs the engine cannot run, whoever sent them."""

from __future__ import annotations

from common.errors import InvalidRequest
from common.wire import WIRE_VERSION, Job, ModelCard


def check_job(job: Job, card: ModelCard, vocab_size: int) -> None:
    """Refuse a job before anything is kept for it.

    Args:
        job: as it came off the queue.
        card: limits of the loaded model.
        vocab_size: ids below it are valid.

    Raises:
        InvalidRequest: names what is wrong and the limit.
    """
    if job.version != WIRE_VERSION:
        raise InvalidRequest(f"this worker reads jobs of version {WIRE_VERSION}, not {job.version}")
    job.parameters.check()
    if not job.prompt_ids:
        raise InvalidRequest("`inputs` must have at least 1 token")
    if job.length > card.max_total_tokens:
        raise InvalidRequest(
            f"`inputs` tokens + `max_new_tokens` must be <= {card.max_total_tokens}. Given: {len(job.prompt_ids)} `inputs` "
            f"tokens and {job.parameters.max_new_tokens} `max_new_tokens`"
        )
    if len(job.sibling_ids) >= job.parameters.children:
        raise InvalidRequest(
            f"tokens of {len(job.sibling_ids) + 1} children are generated already, and there are {job.parameters.children}"
        )
    generated = [job.generated_ids, *job.sibling_ids]
    longest = max(map(len, generated))
    if longest > job.parameters.max_new_tokens:
        raise InvalidRequest(
            f"{longest} tokens are generated already, more than `max_new_tokens` ({job.parameters.max_new_tokens})"
        )
    for name, ids in (("prompt", job.prompt_ids), *(("generated", ids) for ids in generated)):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            raise InvalidRequest(f"{name} token ids must be between 0 and {vocab_size - 1}")
    job.parameters.check_vocabulary(vocab_size)
