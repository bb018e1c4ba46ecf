"""Checks and measures the engine on a GPU, in less than 8 minutes on an H200: `python -m ops.bench.gpu_check`.

It needs no model: a Llama of a billion random weights is made for it. Printed are a line for each check, decode and prefill
as shares of the rates measured in the same run, and, on the last line, all of it as JSON. The exit code is 1 when a check
failed. With `--device cpu` a tiny model runs through the same checks, which shows that the script works, and nothing more.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from common.parameters import GenerationParameters
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import Failed, Job, Tokens
from ops.bench import gpu_model
from ops.bench.engine_limits import Limits
from ops.bench.engine_run import Bench, Decode, Prefill
from workers.engine.block_pool import BlockPool
from workers.engine.engine import Engine
from workers.engine.main import load
from workers.engine.model_runner import TransformersRunner
from workers.engine.plan import FloatArray, Row, StepPlan
from workers.engine.self_check import row_errors
from workers.engine.sequence import Sequence

SECONDS = 420.0
"""Nothing new is begun after this time."""
LONG = {"cuda": 600, "cpu": 90}
"""Tokens of a forced sequence, more than two pages on a GPU; the last `STEPS` of them come one by one."""
STEPS = 24
WIDTHS = {"cuda": (1, 8, 32, 64, 128), "cpu": (1, 4)}
PREFILLS = {"cuda": (512, 2048), "cpu": (128,)}
ANSWER = {"cuda": 128, "cpu": 24}
# What may differ, as the root mean square of a row of logits in its standard deviations, and how much of the tokens must agree.
# Of rounding to bfloat16 such models make 0.014 (on CPU, 16 layers, narrower ones), of neighbours' keys 0.08 and more.
EAGER_DIFFERENCE = {"cuda": 0.05, "cpu": 1e-3}
GRAPH_DIFFERENCE = {"cuda": 0.05, "cpu": 1e-5}
RESUMED_SHARE = {"cuda": 0.8, "cpu": 1.0}


class Check(Struct, frozen=True):
    name: str
    passed: bool
    figure: float
    limit: float
    seconds: float


class Report(Struct):
    versions: dict[str, str]
    checks: list[Check] = []
    limits: Limits | None = None
    load_seconds: float = 0.0
    decode: dict[int, Decode] = {}
    decode_plain: dict[int, Decode] = {}
    """Without graphs and overlap."""
    prefill: dict[int, Prefill] = {}
    left_out: list[str] = []
    """For want of time."""
    seconds: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, help="write the JSON there too")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tgq-gpu-") as folder:
        report = _Run(given.device, Path(folder)).report()
    document = msgspec.json.encode(report)
    if given.out is not None:
        given.out.write_bytes(document + b"\n")
    print(document.decode())
    return 0 if all(check.passed for check in report.checks) else 1


class _Run:
    def __init__(self, device: str, folder: Path) -> None:
        self._device = device
        self._folder = folder
        self._started = time.perf_counter()
        self._report = Report(gpu_model.versions())
        gpu_model.write_model(folder, gpu_model.LARGE if device == "cuda" else gpu_model.SMALL, device)

    def report(self) -> Report:
        """Run all parts."""
        report, device = self._report, self._device
        print(" ".join(f"{name} {value}" for name, value in report.versions.items()))
        generator = np.random.default_rng(1)
        forced = generator.integers(0, 256, size=(3, LONG[device])).tolist()
        eager = gpu_model.eager_logits(self._folder, forced, device)[:, -STEPS:]
        report.limits = gpu_model.limits(device)
        gpu_model.release()

        plain, _ = self._load(cuda_graphs=[0], overlap=False)
        by_kernel = forced_logits(plain, forced)
        self._check("paged against eager", EAGER_DIFFERENCE[device], lambda: _error(by_kernel, eager))
        self._measure(plain, report.decode_plain, "plain decode", overlap=False)
        del plain
        gpu_model.release()

        runner, seconds = self._load()
        report.load_seconds = seconds
        graphs = "graphs against none"
        self._check(graphs, GRAPH_DIFFERENCE[device], lambda: _error(forced_logits(runner, forced), by_kernel))
        jobs = [self._job(f"{i}", forced[i % 3][i : i + 50], i) for i in range(12)]
        ahead = self._answers(runner, jobs)
        self._check(
            "tokens that differ with overlap and without",
            0.0,
            lambda: 1 - _agreement(ahead, self._answers(runner, jobs, overlap=False)),
        )
        self._check(
            "tokens that differ after a resume", 1 - RESUMED_SHARE[device], lambda: self._resumed(runner, jobs, ahead)
        )
        self._measure(runner, report.decode, "decode")
        self._prefill(runner)
        report.seconds = time.perf_counter() - self._started
        return report

    # -- parts

    def _load(self, **settings: Any) -> tuple[TransformersRunner, float]:
        started = time.perf_counter()
        runner, _ = load(self._settings(**settings), lambda stage, fraction: None)
        assert isinstance(runner, TransformersRunner)
        return runner, time.perf_counter() - started

    def _settings(self, **settings: Any) -> Settings:
        # The cache is small enough for a GPU that others use too.
        return Settings.of(
            model_id=str(self._folder),
            device=self._device,
            max_batch_total_tokens=131_072 if self._device == "cuda" else 16_384,
            prefix_caching=False,
            **settings,
        )

    def _check(self, name: str, limit: float, measure: Callable[[], float]) -> None:
        """A figure that must not be above a limit; a NaN is."""
        if self._late(name):
            return
        started = time.perf_counter()
        figure = float(measure())
        check = Check(name, figure <= limit, figure, limit, time.perf_counter() - started)
        self._report.checks.append(check)
        print(f"{'passed' if check.passed else 'FAILED':8} {name:45} {figure:.4g} (at most {limit:.4g})", flush=True)

    def _late(self, name: str) -> bool:
        late = time.perf_counter() - self._started > SECONDS
        if late:
            self._report.left_out.append(name)
        return late

    def _measure(self, runner: TransformersRunner, into: dict[int, Decode], name: str, **settings: Any) -> None:
        bench = self._bench(runner, **settings)
        bench.run(1)  # Warm up.
        for width in WIDTHS[self._device]:
            if not self._late(f"{name} {width}"):
                into[width] = found = bench.decode(width)
                print(
                    f"{name} {width}: {found.step_seconds * 1000:.2f} ms a step, "
                    f"{found.limit_seconds / found.step_seconds:.2f} of the limit, {found.tokens_per_second:.0f} tokens/s with prefill",
                    flush=True,
                )

    def _prefill(self, runner: TransformersRunner) -> None:
        bench = self._bench(runner)
        for tokens in PREFILLS[self._device]:
            if not self._late(f"prefill {tokens}"):
                self._report.prefill[tokens] = found = bench.prefill(tokens)
                print(
                    f"prefill {tokens}: {tokens / found.seconds:.0f} tokens/s, {found.share:.2f} of the limit",
                    flush=True,
                )

    def _bench(self, runner: TransformersRunner, **settings: Any) -> Bench:
        assert self._report.limits is not None
        return Bench(self._settings(**settings), runner, self._tokenizer, self._report.limits)

    # -- answers

    @property
    def _tokenizer(self) -> Tokenizer:
        from common.model_files import find_model

        return Tokenizer(find_model(self._settings(), weights=False))

    def _job(self, name: str, prompt: list[int], seed: int) -> Job:
        # All of one length, so that the steps are the same with and without overlap.
        parameters = GenerationParameters(
            max_new_tokens=ANSWER[self._device], seed=seed, sample=seed % 2 == 1, temperature=0.7, ignore_eos=True
        )
        return Job(id=name, model="", prompt_ids=prompt, parameters=parameters, submitted_at=time.time())

    def _answers(self, runner: TransformersRunner, jobs: list[Job], **settings: Any) -> dict[str, list[int]]:
        """The ids that the jobs generate, those they came with included."""
        engine = Engine(runner, self._tokenizer, self._settings(**settings))
        engine.add(jobs)
        answers = {job.id: list(job.generated_ids) for job in jobs}
        while engine.has_work:
            for event in engine.step():
                if isinstance(event.body, Failed):
                    raise RuntimeError(f"a request failed: {event.body.message}")
                if isinstance(event.body, Tokens):
                    answers[event.request] += [token.id for token in event.body.tokens]
        return answers

    def _resumed(self, runner: TransformersRunner, jobs: list[Job], whole: dict[str, list[int]]) -> float:
        cut = [
            msgspec.structs.replace(job, generated_ids=whole[job.id][: 1 + (7 * i) % (ANSWER[self._device] - 1)])
            for i, job in enumerate(jobs)
        ]
        return 1 - _agreement(self._answers(runner, cut), whole)


def forced_logits(runner: TransformersRunner, rows: list[list[int]]) -> FloatArray:
    """Logits of the last `STEPS` tokens of sequences of one length, `[rows, STEPS, vocabulary]`.

    What comes before is computed in two chunks, these tokens one by one, all sequences together.
    """
    pool = BlockPool(runner.num_blocks, runner.block_size, contiguous=runner.contiguous_blocks)
    sequences = []
    for ids in rows:
        parameters = GenerationParameters(max_new_tokens=1, seed=0)
        sequence = Sequence(Job(id="", model="", prompt_ids=ids, parameters=parameters, submitted_at=0.0))
        sequence.blocks = pool.allocate(pool.blocks_for(len(ids))) or []
        sequences.append(sequence)
    before = len(rows[0]) - STEPS
    half = before // 2
    for start, count in ((0, half), (half, before - half)):
        runner.forward(StepPlan([Row(sequence, start, count, 0) for sequence in sequences]))
    found = [
        runner.forward(StepPlan([Row(sequence, before + step, 1, 1) for sequence in sequences])).copy()
        for step in range(STEPS)
    ]
    return np.stack(found, axis=1)


def _error(found: FloatArray, expected: npt.NDArray[np.float32]) -> float:
    """The largest of all rows."""
    return float(row_errors(found, expected).max())


def _agreement(found: dict[str, list[int]], expected: dict[str, list[int]]) -> float:
    """Share of the tokens before the first that differs."""
    same = total = 0
    for name, ids in expected.items():
        pairs = zip(found[name], ids, strict=True)
        same += next((i for i, (a, b) in enumerate(pairs) if a != b), len(ids))
        total += len(ids)
    return same / total


if __name__ == "__main__":
    sys.exit(main())
