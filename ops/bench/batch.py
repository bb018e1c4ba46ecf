"""`make bench-batch`: what live requests feel of a batch that takes all there is, and how much a batch gets when it is alone.

The scripted model with the step times of a GPU (`ops.bench.timed_engine`), or with `--real` the default model on the CPU. Rounds
in turn on one service; figures are ratios.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from common.batches.objects import BatchObject
from ops.batches.client import BatchClient
from ops.bench.load import BadAnswer, run_streams
from ops.bench.words import WORDS
from ops.local_service import LocalService
from workers.engine.batch_pace import LIVE_SECONDS

ROUNDS = 2
PATIENCE = 600.0


@dataclass(frozen=True)
class Plan:
    """Sizes of one run. Prompts are in words, of about a token each; no two begin alike."""

    settings: dict[str, str]
    rate: float
    """Live requests a second; they come at random."""
    live: int
    """Live requests a round."""
    live_words: int
    live_tokens: int
    lines: int
    """Of the batch that runs alone."""
    line_words: int
    line_tokens: int


_COMMON = {"LOG_LEVEL": "error", "MAX_CONCURRENT_REQUESTS": "4000", "MAX_BATCH_SIZE": "64"}
TIMED = Plan(
    settings={
        **_COMMON,
        "MODEL_ID": "scripted",
        "TGQ_ENGINE_TARGET": "ops.bench.timed_engine:run",
        "MAX_BATCH_PREFILL_TOKENS": "4096",
    },
    rate=4.0,
    live=120,
    live_words=200,
    live_tokens=40,
    lines=600,
    line_words=400,
    line_tokens=64,
)
REAL = Plan(
    settings={**_COMMON, "TGQ_DEVICE": "cpu", "TGQ_ENGINE_THREADS": "1"},
    rate=0.4,
    live=40,
    live_words=60,
    live_tokens=16,
    lines=96,
    line_words=40,
    line_tokens=24,
)


@dataclass
class BatchFigures:
    """Seconds to first tokens of all rounds together; tokens a second, round by round."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    machine: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)

    def first_token_ratio(self, percent: int) -> float:
        """Time to first token beside a batch, over that without."""
        return percentile(self.beside, percent) / percentile(self.alone, percent)

    @property
    def throughput_ratio(self) -> float:
        """Tokens a second of a batch alone, over the same requests sent live all at once (median over the rounds)."""
        return median(batch / live for batch, live in zip(self.batch, self.machine, strict=True))


def percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


class _Bench:
    def __init__(self, plan: Plan, service: LocalService, client: BatchClient, directory: Path) -> None:
        self._plan = plan
        self._service = service
        self._client = client
        self._directory = directory
        self._random = random.Random(1)

    def first_tokens(self) -> list[float]:
        """Seconds to the first token of live requests that come at random."""
        plan, starts, at = self._plan, [], 0.0
        for _ in range(plan.live):
            at += self._random.expovariate(plan.rate)
            starts.append(at)
        bodies: list[dict[str, object]] = [
            {
                "inputs": self._prompt(plan.live_words),
                "parameters": {"max_new_tokens": plan.live_tokens, "do_sample": False},
            }
            for _ in starts
        ]
        results = run_streams(f"{self._service.url}/generate_stream", bodies, starts)
        return [result.first_byte - start for result, start in zip(results, starts, strict=True)]

    @contextmanager
    def saturated(self) -> Iterator[None]:
        """A batch that runs all the while, and longer."""
        batch = self._submit([self._line() for _ in range(20_000 if self._plan is TIMED else 2000)])
        self._until(batch, lambda seen: seen.request_counts.completed > 0)
        yield
        if not self._client.batch(batch.id).open:
            raise BadAnswer("the batch ended before the live requests did")
        self._client.cancel(batch.id)
        self._until(batch, lambda seen: not seen.open)

    def batch_rate(self, requests: list[dict[str, object]]) -> float:
        """Tokens a second when they are the lines of a batch, and no live request was there for a while."""
        time.sleep(LIVE_SECONDS)
        started = time.perf_counter()
        batch = self._until(self._submit(requests), lambda seen: not seen.open)
        seconds = time.perf_counter() - started
        if batch.usage is None or batch.request_counts.completed != len(requests):
            raise BadAnswer(f"the batch ended with {batch.request_counts}")
        return batch.usage.output_tokens / seconds

    def live_rate(self, requests: list[dict[str, object]]) -> float:
        """Tokens a second when they are sent live all at once."""
        results = run_streams(f"{self._service.url}/v1/completions", requests)
        tokens = sum(json.loads(result.body)["usage"]["completion_tokens"] for result in results)
        return float(tokens / max(result.finished for result in results))

    def requests(self) -> list[dict[str, object]]:
        return [self._line() for _ in range(self._plan.lines)]

    def _line(self) -> dict[str, object]:
        return {
            "model": self._service_model,
            "prompt": self._prompt(self._plan.line_words),
            "max_tokens": self._plan.line_tokens,
            "temperature": 0,
        }

    @property
    def _service_model(self) -> str:
        return self._plan.settings.get("MODEL_ID", "tgi")

    def _prompt(self, words: int) -> str:
        return f"{self._random.getrandbits(40)} " + " ".join(self._random.choices(WORDS, k=words))

    def _submit(self, requests: list[dict[str, object]]) -> BatchObject:
        path = self._directory / "requests.jsonl"
        with path.open("w") as file:
            for number, body in enumerate(requests):
                line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
                file.write(json.dumps(line) + "\n")
        return self._client.create(self._client.upload(path).id, "/v1/completions", window="24h")

    def _until(self, batch: BatchObject, reached: Callable[[BatchObject], bool]) -> BatchObject:
        deadline = time.monotonic() + PATIENCE
        while not reached(batch):
            if time.monotonic() > deadline:
                raise BadAnswer(f"the batch is still {batch.status}: {batch.request_counts}")
            time.sleep(0.1)
            batch = self._client.batch(batch.id)
        return batch


def measure(plan: Plan, directory: Path, *, rounds: int = ROUNDS) -> BatchFigures:
    """Measure with and without a batch in turn, and the same requests as a batch and live in turn."""
    figures = BatchFigures()
    with (
        LocalService(plan.settings, batch_workers=1, directory=directory / "service") as service,
        BatchClient(service.url) as client,
    ):
        bench = _Bench(plan, service, client, directory)
        bench.live_rate(bench.requests()[:64])
        for _ in range(rounds):
            figures.alone += bench.first_tokens()
            with bench.saturated():
                figures.beside += bench.first_tokens()
        for _ in range(rounds):
            figures.machine.append(bench.live_rate(bench.requests()))
            figures.batch.append(bench.batch_rate(bench.requests()))
    return figures


def main() -> None:
    """Run all parts, print the table, write BENCH_OUT."""
    plan = REAL if "--real" in sys.argv[1:] else TIMED
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tgq-bench-") as name, console.status("live requests and batches"):
        figures = measure(plan, Path(name))
    table = Table("what", "with", "without", "ratio", title="tgq batches beside live traffic")
    for percent in (50, 95):
        table.add_row(
            f"time to first token, p{percent}, beside a batch (ms)",
            f"{percentile(figures.beside, percent) * 1000:.0f}",
            f"{percentile(figures.alone, percent) * 1000:.0f}",
            f"{figures.first_token_ratio(percent):.2f}",
        )
    table.add_row(
        "a batch alone, and the same requests live (tokens/s)",
        f"{median(figures.batch):.0f}",
        f"{median(figures.machine):.0f}",
        f"{figures.throughput_ratio:.2f}",
    )
    console.print(table)
    if out := os.environ.get("BENCH_OUT"):
        report = {
            "first_token_ratio_p50": figures.first_token_ratio(50),
            "first_token_ratio_p95": figures.first_token_ratio(95),
            "batch_throughput_ratio": figures.throughput_ratio,
            "first_token_seconds": {"alone": figures.alone, "beside": figures.beside},
            "tokens_per_second": {"batch": figures.batch, "live": figures.machine},
        }
        Path(out).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
