"""The engine alone, without a queue: decode, prefill, what options cost. One process for each precision and thread count."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
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
PREFILLS = (128, 512, 2048)
PROMPT_TOKENS = 64
ANSWER_TOKENS = 48
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


class Report(Struct, frozen=True):
    threads: int
    limits: engine_limits.Limits
    load_seconds: float
    resident_bytes: int
    """Once loaded."""
    peak_bytes: int
    decode: dict[int, Decode]
    prefill: dict[int, Prefill]
    top_n_overhead: float
    """How much longer a step takes when all of 16 sequences want five alternatives, ..."""
    grammar_overhead: float
    """... when all follow a grammar."""
    prefix_gain: float
    """How many times sooner the first token of a prompt of 512 tokens comes the second time."""
    strict_cost: dict[str, float]
    """How many times as long as in fast mode a decode step or a prefill takes."""


def measure(settings: Settings) -> Report:
    """Load the model of the settings and run all parts."""
    started = time.perf_counter()
    runner, tokenizer = load(settings, lambda stage, fraction: None)
    assert isinstance(runner, TransformersRunner)
    loaded, resident = time.perf_counter() - started, _resident_bytes()
    bench = Bench(settings, runner, tokenizer, engine_limits.measure(runner.size.dense_bytes))
    bench.run(1)  # Warm up.
    decode = {width: bench.decode(width) for width in WIDTHS}
    prefill = {tokens: bench.prefill(tokens) for tokens in PREFILLS}
    top_n, grammar = bench.overheads({"top_n_tokens": 5}, {"grammar": Grammar("regex", "[ a-z]{200}")})
    prefix_gain = bench.prefix_gain()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Report(
        threads=engine_threads(settings),
        limits=bench.limits,
        load_seconds=loaded,
        resident_bytes=resident,
        decode=decode,
        prefill=prefill,
        top_n_overhead=top_n,
        grammar_overhead=grammar,
        prefix_gain=prefix_gain,
        peak_bytes=peak,
        strict_cost=bench.cost_beside(_fast(settings, bench)),
    )


def _fast(settings: Settings, bench: Bench) -> Bench:
    settings = settings.model_copy(update={"strict": False})
    runner, tokenizer = load(settings, lambda stage, fraction: None)
    assert isinstance(runner, TransformersRunner)
    return Bench(settings, runner, tokenizer, bench.limits)


class _Run(Struct, frozen=True):
    step: float
    best: float
    rate: float


_ROUNDS = 2
"""What is compared is measured in turns, so that a busy moment of the machine meets all alike."""


class Bench:
    def __init__(
        self, settings: Settings, runner: TransformersRunner, tokenizer: Tokenizer, limits: engine_limits.Limits
    ) -> None:
        self.limits = limits
        self._settings = settings
        self._runner = runner
        self._tokenizer = tokenizer
        text = tokenizer.encode(WORDS * 200).ids
        self._text = text[: max(PREFILLS) + max(WIDTHS) + 1]
        self._operations_per_second = limits.int8_per_second if settings.quantize else limits.float_per_second

    def decode(self, width: int) -> Decode:
        run = self.run(width)
        context = PROMPT_TOKENS + ANSWER_TOKENS // 2
        size = self._runner.size
        read = (size.dense_bytes + width * context * size.cache_bytes_per_token) / self.limits.read_bytes_per_second
        compute = 2 * size.dense_parameters * width / self._operations_per_second
        return Decode(run.step, run.best, max(read, compute), run.rate)

    def run(self, width: int, **options: Any) -> _Run:
        """Several prompts of one length, answered at once."""
        engine = self._engine(prefix_caching=False)
        jobs = [self._job(f"{i}", self._text[i : i + PROMPT_TOKENS], ANSWER_TOKENS, **options) for i in range(width)]
        started = time.perf_counter()
        engine.add(jobs)
        steps: list[float] = []
        while engine.has_work:
            before = time.perf_counter()
            tokens = sum(len(event.body.tokens) for event in engine.step() if isinstance(event.body, Tokens))
            if tokens == width:
                steps.append(time.perf_counter() - before)
        # The first of them may hold the end of a prefill.
        return _Run(median(steps[1:]), min(steps[1:]), width * ANSWER_TOKENS / (time.perf_counter() - started))

    def prefill(self, tokens: int, tries: int = 3) -> Prefill:
        engine = self._engine(prefix_caching=False)
        seconds = min(self._first_token(engine, self._text[i : i + tokens]) for i in range(tries))
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

    def cost_beside(self, fast: Bench) -> dict[str, float]:
        """How many times as long as `fast` this takes for the same."""
        pairs = {
            **{f"decode {width}": [partial(bench._step, width, {}) for bench in (self, fast)] for width in (1, 16)},
            **{f"prefill {n}": [partial(bench._prefill_once, n) for bench in (self, fast)] for n in PREFILLS},
        }
        return {name: mine / other for name, works in pairs.items() for mine, other in [_in_turns(works)]}

    def _step(self, width: int, options: dict[str, Any]) -> float:
        return self.run(width, **options).best

    def _prefill_once(self, tokens: int) -> float:
        return self.prefill(tokens, tries=1).seconds

    def prefix_gain(self) -> float:
        engine = self._engine(prefix_caching=True)
        first, again = (self._first_token(engine, self._text[:512]) for _ in range(2))
        return first / again

    def _first_token(self, engine: Engine, prompt: list[int]) -> float:
        started = time.perf_counter()
        engine.add([self._job("one", prompt, 1)])
        while engine.has_work:
            engine.step()
        return time.perf_counter() - started

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


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def child(precision: str, threads: int | None, say: Callable[[str], object]) -> None:
    """One process's part: `say` gets the report as JSON."""
    settings = Settings.of(
        device="cpu",
        engine_threads=threads,
        max_batch_total_tokens=32_768,
        quantize="int8" if precision == "int8" else None,
    )
    say(msgspec.json.encode(measure(settings)).decode())
