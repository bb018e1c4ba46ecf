"""Many short requests with marks of their own: whoever gets another's mark, or misses a part of his own text, shows it."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from random import Random

from ops.chaos.client import REFUSALS, RETRY_SECONDS, Balancer
from ops.chaos.http_stream import Address, ConnectionCut, HttpAnswer, NotConnected, post
from ops.chaos.questions import STREAM, WHOLE
from ops.chaos.verdict import Verdict, is_typed_error

LIMIT_SECONDS = 60.0
MARK = re.compile(r"m\d{6}")
_WORDS = ("naïve", "queue", "token", "ключ", "漢字", "🙂", "👩\u200d🚀", "batch", "über")
_SMALL_BUFFER = 4096
_DETAILS_KEPT = 20


class Crowd:
    """Clients that send requests of their own making, one after another.

    Args:
        leaving: share of the requests whose client goes away at some moment.
        slow: share of the requests whose client reads slowly, with a small buffer.
        repeats: how often an answer says its text, at most.
    """

    def __init__(
        self, addresses: Sequence[Address], rng: Random, *, clients: int, leaving: float, slow: float, repeats: int
    ) -> None:
        self.verdicts: Counter[Verdict] = Counter()
        self.details: list[str] = []
        self.sent = 0
        self._balancer = Balancer(addresses)
        self._rng = rng
        self._clients = clients
        self._leaving = leaving
        self._slow = slow
        self._repeats = repeats

    async def send(self, requests: int) -> None:
        """Send so many more and wait for all their ends."""
        last = self.sent + requests

        async def client() -> None:
            while self.sent < last:
                self.sent += 1
                await self._request(self.sent)

        await asyncio.gather(*(client() for _ in range(self._clients)))

    async def _request(self, number: int) -> None:
        rng = self._rng
        mark = f"m{number % 10**6:06}"
        text = f"{mark} {' '.join(rng.choices(_WORDS, k=rng.randint(1, 4)))} {mark}. "
        share = rng.random()
        leaves = share < self._leaving
        slow = not leaves and share < self._leaving + self._slow
        repeat = rng.randint(1, self._repeats)
        script = {
            "text": text,
            "repeat": repeat,
            "first_ms": rng.choice((0, 0, 0, 30)),
            "step_ms": rng.choice((0, 0, 5)),
        }
        inputs = f"<<script {json.dumps(script)}>>"
        payload = json.dumps({"inputs": inputs, "parameters": {"max_new_tokens": 800}}).encode()
        heard: list[str] = []
        path = STREAM if slow or rng.random() < 0.6 else WHOLE
        ending: Verdict
        try:
            async with asyncio.timeout(rng.uniform(0, 0.2) if leaves else LIMIT_SECONDS):
                ending = await self._ask(path, payload, heard, slow=slow)
        except TimeoutError:
            ending = "left" if leaves else "lost"
        except ConnectionCut:
            ending = "cut"
        except (ValueError, KeyError):
            ending = "wrong"  # Not what answers look like.
        self._judge(text * repeat, "".join(heard), ending)

    async def _ask(self, path: str, payload: bytes, heard: list[str], *, slow: bool) -> Verdict:
        """Append what is heard to `heard` as it comes."""
        while True:
            try:
                buffer = _SMALL_BUFFER if slow else None
                async with post(self._balancer.next(), path, payload, receive_buffer=buffer) as answer:
                    if answer.status not in REFUSALS:
                        return await self._read(path, answer, heard, slow=slow)
            except NotConnected:
                pass  # Taken by nobody, as when it is refused.
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, path: str, answer: HttpAnswer, heard: list[str], *, slow: bool) -> Verdict:
        if answer.status != 200:
            return "error" if is_typed_error(await answer.body()) else "wrong"
        if path == WHOLE:
            heard.append(json.loads(await answer.body())["generated_text"])
            return "right"
        async for payload in answer.events():
            if is_typed_error(payload):
                return "error"
            token = json.loads(payload)["token"]
            heard.append("" if token["special"] else token["text"])
            if slow and len(heard) % 8 == 0:
                await asyncio.sleep(0.1)
        return "right"

    def _judge(self, text: str, heard: str, ending: Verdict) -> None:
        complete = heard == text if ending == "right" else text.startswith(heard)
        foreign = set(MARK.findall(heard)) - {text[:7]}
        verdict = ending if complete and not foreign else "wrong"
        self.verdicts[verdict] += 1
        if verdict not in ("right", "left") and len(self.details) < _DETAILS_KEPT:
            self.details.append(f"{verdict} ({ending}): {heard[:200]!r} of {text[:200]!r}")
