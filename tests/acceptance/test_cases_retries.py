"""Cases from other servers' bug reports, replayed: clients that lose patience and ask again (B07)."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from ops.local_service import LocalService
from tests.acceptance.native import script
from tests.acceptance.observation import KEYS, Observer, until

RETRIES = 3
PATIENCE = 0.8


@pytest.fixture
def impatient(scripted_service: LocalService) -> OpenAI:
    return OpenAI(base_url=f"{scripted_service.url}/v1", api_key="none", timeout=PATIENCE, max_retries=RETRIES)


async def generated_so_far(seen: Observer) -> int:
    """With what ended just now, which is told with a heartbeat."""
    await seen.until_idle()
    await seen.until_heard()
    return seen.generated()


async def test_b07_of_a_clients_tries_one_runs_at_a_time(scripted_service: LocalService, impatient: OpenAI) -> None:
    """Each that it gives up is cancelled, the last one too."""
    prompt = script("for nobody ", repeat=400, step_ms=25)
    with Observer(scripted_service) as seen, impatient:
        before = await generated_so_far(seen)
        with pytest.raises(openai.APITimeoutError):
            impatient.completions.create(model="tgi", prompt=prompt, max_tokens=2000)
        await until(lambda: seen.running() == 0 and seen.permits() == 0, 10, "the end of the last try")
        # About 130: steps of 25 ms for as long as a client waits. A single try that went on would come to 1,200.
        assert await generated_so_far(seen) - before < 1000


async def test_b07_a_key_makes_one_call_of_them(scripted_service: LocalService, impatient: OpenAI) -> None:
    text = "worth waiting for " * 10
    with Observer(scripted_service) as seen, impatient:
        before = await generated_so_far(seen)
        # More tries than a machine that has time needs: the answer takes two of them.
        answer = impatient.with_options(max_retries=3 * RETRIES).completions.create(
            model="tgi",
            prompt=script(text, step_ms=50),
            max_tokens=200,
            extra_headers={"Idempotency-Key": "once-and-for-all"},
        )
        assert answer.choices[0].text == text
        assert answer.usage is not None
        assert answer.usage.completion_tokens * 0.05 > PATIENCE
        await until(lambda: seen.generated() >= before + answer.usage.completion_tokens, 30, "the engine's count")  # type: ignore[union-attr]
        assert seen.generated() - before == answer.usage.completion_tokens
        assert seen.redis.keys(f"{KEYS.prefix}:idempotency:*")
