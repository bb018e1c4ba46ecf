"""The engine alone, in a process of its own: what the service's figures are compared with.

Reads one JSON object a line on stdin, `{"prompts": [[id, ...], ...], "max_new_tokens": n}`, runs all of them at once and
answers with one line, `{"seconds": total, "first_token": seconds until the first sequence's first token}`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping

from common.parameters import GenerationParameters
from common.settings import Settings
from common.wire import Job, Tokens
from ops.child_process import spawn


def main() -> None:
    """Load the model, say `ready`, then answer until stdin ends."""
    from workers.engine.engine import Engine
    from workers.engine.main import load

    runner, tokenizer = load(Settings(), lambda stage, fraction: None)
    print("ready", flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        engine = Engine(runner, tokenizer, Settings())
        jobs = [
            Job(
                id=str(number),
                model=runner.card.model_id,
                prompt_ids=prompt,
                parameters=GenerationParameters(max_new_tokens=work["max_new_tokens"], seed=0),
                submitted_at=time.time(),
            )
            for number, prompt in enumerate(work["prompts"])
        ]
        started = time.perf_counter()
        first = None
        generated = 0
        engine.add(jobs)
        while engine.has_work:
            for event in engine.step():
                if isinstance(event.body, Tokens):
                    generated += len(event.body.tokens)
                    if first is None:
                        first = time.perf_counter() - started
        answer = {"seconds": time.perf_counter() - started, "first_token": first, "generated": generated}
        print(json.dumps(answer), flush=True)


class BareEngine:
    """The process above, as seen by the bench."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def __enter__(self) -> BareEngine:
        self._process = spawn(
            [sys.executable, "-m", "ops.bench.bare_engine"],
            environment=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the bare engine ended with {self._process.wait()}")
        return self

    def run(self, prompts: list[list[int]], max_new_tokens: int) -> dict[str, float]:
        """Run the prompts at once; `seconds`, `first_token` and `generated` as the process measured them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_new_tokens": max_new_tokens}) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


if __name__ == "__main__":
    main()
