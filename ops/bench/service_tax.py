"""What the service costs on top of its engine: output tokens per second and time to first token, real model, one thread."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from common.model_files import find_model
from common.settings import Settings
from common.tokenizer import Tokenizer
from ops.bench.bare_engine import BareEngine
from ops.bench.load import BadAnswer, run_streams
from ops.local_service import LocalService
from workers.engine.default_model import ensure_default_model

WIDTHS = (1, 8, 32)
NEW_TOKENS = 64
_TEXT = (
    "The river rises in the hills north of the town, runs past three mills and an old stone bridge, and reaches the sea "
    "after forty miles. Along its banks people have grown barley, kept sheep and fished for as long as anyone has written "
    "things down, and the names of the fields still tell who owned them. In the spring of that year number {number} was "
)


@dataclass(slots=True)
class TaxFigures:
    """Rounds in turn: `service[width]` and `engine[width]` in output tokens per second, first tokens in seconds."""

    service: dict[int, list[float]] = field(default_factory=lambda: {width: [] for width in WIDTHS})
    engine: dict[int, list[float]] = field(default_factory=lambda: {width: [] for width in WIDTHS})
    service_first_token: list[float] = field(default_factory=list)
    engine_first_token: list[float] = field(default_factory=list)

    def tax(self, width: int) -> float:
        """Share of the engine's rate that is lost on the way (median over the rounds)."""
        pairs = zip(self.service[width], self.engine[width], strict=True)
        return 1 - median(ours / alone for ours, alone in pairs)

    @property
    def first_token_added(self) -> float:
        """Time to first token over HTTP less the engine's own, in seconds: the median over pairs measured in turn."""
        pairs = zip(self.service_first_token, self.engine_first_token, strict=True)
        return median(service - alone for service, alone in pairs)


def measure(directory: Path, *, rounds: int = 3, first_tokens: int = 30) -> TaxFigures:
    """Measure the engine alone and the whole service on the same work, in turn."""
    # The same prompts again and again: with the prefix cache, the rounds would measure that instead.
    settings = {"TGQ_ENGINE_THREADS": "1", "MAX_BATCH_SIZE": "32", "PREFIX_CACHING": "false", "LOG_LEVEL": "error"}
    ensure_default_model(Settings(), lambda stage, fraction: None)
    tokenizer = Tokenizer(find_model(Settings(), weights=False))
    texts = [_TEXT.format(number=number) for number in range(max(WIDTHS))]
    prompts = [tokenizer.encode(text).ids for text in texts]
    figures = TaxFigures()
    with (
        BareEngine({**os.environ, **settings}) as engine,
        LocalService(settings, directory=directory / "tax") as service,
    ):
        for counts in [False] + [True] * rounds:
            for width in WIDTHS:
                alone = engine.run(prompts[:width], NEW_TOKENS)
                seconds = _serve(service.url, texts[:width], NEW_TOKENS)
                if alone["generated"] != width * NEW_TOKENS:
                    raise BadAnswer("a sequence of the bare engine ended before its last token")
                if counts:
                    figures.engine[width].append(width * NEW_TOKENS / alone["seconds"])
                    figures.service[width].append(width * NEW_TOKENS / seconds)
        for number in range(first_tokens):
            index = number % len(prompts)
            figures.engine_first_token.append(engine.run([prompts[index]], 1)["first_token"])
            figures.service_first_token.append(_serve(service.url, [texts[index]], 1))
    return figures


def _serve(url: str, texts: list[str], new_tokens: int) -> float:
    bodies: list[dict[str, object]] = [
        {"inputs": text, "parameters": {"max_new_tokens": new_tokens, "do_sample": False}} for text in texts
    ]
    results = run_streams(f"{url}/generate_stream", bodies)
    for result in results:
        if len(result.events) != new_tokens:
            raise BadAnswer(f"a stream had {len(result.events)} events instead of {new_tokens}")
    return max(result.finished for result in results) if new_tokens > 1 else results[0].first_byte
