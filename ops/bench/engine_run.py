"""The engine alone, without a queue: decode, prefill, what options cost. One process for each precision and thread count."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from common.grammar import Grammar
from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Job, Tokens
from ops.bench import engine_limits
from workers.engine.engine import Engine
from workers.engine.main import load
from workers.engine.model_loader import engine_threads
from workers.engine.model_runner import TransformersRunner

WIDTHS = (1, 8, 16, 32, 64)
PREFILLS = {128: 3, 512: 2, 2048: 1}
"""Tokens, and how often they are tried."""
TRIES = {1: 5, 8: 2}
"""How often a width is tried, if not once."""
PROMPT_TOKENS = 32
ANSWER_TOKENS = 24
"""Long enough that the first sequences still run when the last of the widest batch begin to decode."""
_OPTION_WIDTH = 16
WORDS = "The harbour master counted the boats that came in before the fog and wrote their names into a book. "


class Decode(Struct, frozen=True):
    step_seconds: float
    """Median of the steps in which all sequences decode."""
    best_step_seconds: float
    limit_seconds: float
    """What the machine's limits allow for it."""
    tokens_per_second: float
    """Of the whole run, prefill included."""

    @property
    def share(self) -> float:
        """Best beside best: the limits too are the best of several tries, and machines are shared."""
        return self.limit_seconds / self.best_step_seconds


class Prefill(Struct, frozen=True):
    seconds: float
    """The best of several tries."""
    limit_seconds: float

    @property
    def share(self) -> float:
        return self.limit_seconds / self.seconds


class Report(Struct):
    """What is measured so far."""

    threads: int
    limits: engine_limits.Limits
    load_seconds: float
    resident_bytes: int
    """Once loaded."""
    peak_bytes: int = 0
    """Of the engine at work."""
    decode: dict[int, Decode] = {}
    prefill: dict[int, Prefill] = {}
    top_n_overhead: float | None = None
    """How much longer a step takes when all of 16 sequences want five alternatives, ..."""
    grammar_overhead: float | None = None
    """... when all follow a grammar."""
    prefix_gain: float | None = None
    """How many times sooner the first token of a prompt of 512 tokens comes the second time."""
    strict_cost: dict[str, float] = {}
    """How many times as long as in fast mode a decode step or a prefill takes."""


Progress = Callable[[Report, str], None]


def measure(settings: Settings, told: Progress) -> None:
    """Load the model of the settings and run all parts; `told` gets the report after each of them, and what it was.

    What options and strictness cost is measured in float32 only.
    """
    started = time.perf_counter()
    runner, tokenizer = load(settings, lambda stage, fraction: None)
    assert isinstance(runner, TransformersRunner)
    loaded, resident = time.perf_counter() - started, _status_bytes("VmRSS")
    size = runner.size.dense_bytes
    bench = Bench(settings, runner, tokenizer, engine_limits.measure(size), engine_limits.clock())
    report = Report(engine_threads(settings), bench.limits, loaded, resident)
    told(report, f"loaded in {loaded:.1f} s; reads {bench.limits.read_bytes_per_second / 1e9:.1f} GB/s")
    _forget_peak()
    bench.run(1)  # Warm up.
    runs: dict[int, Run] = {}
    for width in WIDTHS:
        runs[width] = bench.best_run(width)
        report.decode = {width: bench.decode_of(width, run) for width, run in runs.items()}
        told(report, f"decode {width}: {runs[width].step * 1000:.1f} ms a step, {report.decode[width].share:.2f}")
    seconds: dict[int, float] = {}
    for tokens, tries in PREFILLS.items():
        seconds[tokens] = bench.prefill_seconds(tokens, tries)
        report.prefill = {tokens: bench.prefill_of(tokens, best) for tokens, best in seconds.items()}
        told(report, f"prefill {tokens}: {seconds[tokens]:.2f} s, {report.prefill[tokens].share:.2f}")
    report.peak_bytes = _status_bytes("VmHWM")
    # Once more: the machine may have been busy the first time.
    report.limits = bench.limits = bench.limits.or_better(engine_limits.measure(size))
    report.decode = {width: bench.decode_of(width, run) for width, run in runs.items()}
    report.prefill = {tokens: bench.prefill_of(tokens, best) for tokens, best in seconds.items()}
    told(report, "limits again")
    if settings.quantize is None:
        _measure_options(bench, settings, report, told)


def _measure_options(bench: Bench, settings: Settings, report: Report, told: Progress) -> None:
    report.top_n_overhead, report.grammar_overhead = bench.overheads(
        {"top_n_tokens": 5}, {"grammar": Grammar("regex", "[ a-z]{200}")}
    )
    told(report, "five alternatives, a grammar")
    report.prefix_gain = bench.prefix_gain()
    told(report, "a prefix that is known")
    settings = settings.model_copy(update={"strict": False})
    runner, tokenizer = load(settings, lambda stage, fraction: None)
    assert isinstance(runner, TransformersRunner)
    for name, cost in bench.costs_beside(Bench(settings, runner, tokenizer, bench.limits, engine_limits.clock())):
        report.strict_cost[name] = cost
        told(report, f"strict beside fast, {name}: {cost:.2f}")


class Run(Struct, frozen=True):
    step: float
    best: float
    rate: float


_ROUNDS = 2
"""What is compared is measured in turns, so that a busy moment of the machine meets all alike."""


class Bench:
    def __init__(
        self,
        settings: Settings,
        runner: TransformersRunner,
        tokenizer: Tokenizer,
        limits: engine_limits.Limits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """
        Args:
            clock: what limits and the engine are measured with.
        """
        self._clock = clock
        self.limits = limits
        self._settings = settings
        self._runner = runner
        self._tokenizer = tokenizer
        text = tokenizer.encode(WORDS * 200).ids
        self._text = text[: max(PREFILLS) + max(WIDTHS) + 1]
        self._operations_per_second = limits.int8_per_second if settings.quantize else limits.float_per_second

    def decode(self, width: int) -> Decode:
        return self.decode_of(width, self.run(width))

    def decode_of(self, width: int, run: Run) -> Decode:
        """A run beside the limits as they are known now."""
        context = PROMPT_TOKENS + ANSWER_TOKENS // 2
        size = self._runner.size
        read = (size.dense_bytes + width * context * size.cache_bytes_per_token) / self.limits.read_bytes_per_second
        compute = 2 * size.dense_parameters * width / self._operations_per_second
        return Decode(run.step, run.best, max(read, compute), run.rate)

    def best_run(self, width: int) -> Run:
        """Short ones are tried as often as the limits: one and a half seconds may all be a busy moment of the machine."""
        return min((self.run(width) for _ in range(TRIES.get(width, 1))), key=lambda run: run.best)

    def run(self, width: int, **options: Any) -> Run:
        """Several prompts of one length, answered at once."""
        engine = self._engine(prefix_caching=False)
        jobs = [self._job(f"{i}", self._text[i : i + PROMPT_TOKENS], ANSWER_TOKENS, **options) for i in range(width)]
        started = self._clock()
        engine.add(jobs)
        steps: list[float] = []
        while engine.has_work:
            before = self._clock()
            tokens = sum(len(event.body.tokens) for event in engine.step() if isinstance(event.body, Tokens))
            if tokens == width:
                steps.append(self._clock() - before)
        # The first of them may hold the end of a prefill.
        return Run(median(steps[1:]), min(steps[1:]), width * ANSWER_TOKENS / (self._clock() - started))

    def prefill(self, tokens: int) -> Prefill:
        return self.prefill_of(tokens, self.prefill_seconds(tokens, 3))

    def prefill_seconds(self, tokens: int, tries: int = 1) -> float:
        """The best of several tries."""
        engine = self._engine(prefix_caching=False)
        return min(self._first_token(engine, self._text[i : i + tokens]) for i in range(tries))

    def prefill_of(self, tokens: int, seconds: float) -> Prefill:
        """A prefill beside the limits as they are known now."""
        size = self._runner.size
        # The output layer computes one row; causal attention half of all pairs, keys and values.
        compute = (
            2 * (size.dense_parameters - size.output_parameters) * tokens / self._operations_per_second
            + size.attention_operations(tokens) / self.limits.float_per_second
        )
        limit = max(compute, size.dense_bytes / self.limits.read_bytes_per_second)
        return Prefill(seconds, limit)

    def overheads(self, *options: dict[str, Any]) -> list[float]:
        """How much longer a step of 16 sequences takes with each of these options."""
        plain, *others = _in_turns([partial(self._step, _OPTION_WIDTH, given) for given in ({}, *options)])
        return [other / plain - 1 for other in others]

    def costs_beside(self, fast: Bench) -> Iterator[tuple[str, float]]:
        """How many times as long as `fast` this takes for the same."""
        for width in (1, 16):
            mine, other = _in_turns([partial(bench._step, width, {}) for bench in (self, fast)])
            yield f"decode {width}", mine / other
        for tokens in PREFILLS:
            mine, other = _in_turns([partial(bench.prefill_seconds, tokens) for bench in (self, fast)])
            yield f"prefill {tokens}", mine / other

    def _step(self, width: int, options: dict[str, Any]) -> float:
        return self.run(width, **options).best

    def prefix_gain(self) -> float:
        engine = self._engine(prefix_caching=True)
        first, again = (self._first_token(engine, self._text[:512]) for _ in range(2))
        return first / again

    def _first_token(self, engine: Engine, prompt: list[int]) -> float:
        started = self._clock()
        engine.add([self._job("one", prompt, 1)])
        while engine.has_work:
            engine.step()
        return self._clock() - started

    def _engine(self, *, prefix_caching: bool) -> Engine:
        settings = self._settings.model_copy(update={"prefix_caching": prefix_caching})
        return Engine(self._runner, self._tokenizer, settings)

    def _job(self, name: str, prompt: list[int], tokens: int, **options: Any) -> Job:
        parameters = GenerationParameters(max_new_tokens=tokens, seed=0, ignore_eos=True, **options)
        return Job(id=name, model="", prompt_ids=prompt, parameters=parameters, submitted_at=time.time())


def _in_turns(works: Many[Callable[[], float]]) -> list[float]:
    """The best of each."""
    rounds = [[work() for work in works] for _ in range(_ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def _status_bytes(name: str) -> int:
    """A figure of this process, as Linux keeps it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _forget_peak() -> None:
    """Let the peak of the memory (VmHWM) begin again here."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def child(precision: str, threads: int, say: Callable[[str], object]) -> None:
    """One process's part: `say` gets the report as JSON whenever there is more of it; progress goes to stderr."""
    settings = Settings.of(
        device="cpu",
        engine_threads=threads,
        max_batch_total_tokens=32_768,
        quantize="int8" if precision == "int8" else None,
    )
    started = time.perf_counter()

    def told(report: Report, what: str) -> None:
        print(f"{time.perf_counter() - started:5.0f} s  {precision}: {what}", file=sys.stderr, flush=True)
        say(msgspec.json.encode(report).decode())

    measure(settings, told)
