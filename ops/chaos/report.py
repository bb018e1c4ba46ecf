"""The tally of answers per fault, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

from rich.table import Table

from ops.chaos.client import Ask
from ops.chaos.faults import FAULTS
from ops.chaos.verdict import Verdict

NOTHING = "none"
"""The row of streams that met no fault."""
SEVERAL = "several"
"""The row of errors of streams that met more than one fault: so many lost workers may end a request."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
DETAILS_KEPT = 50


@dataclass
class Row:
    """All answers that met one kind of fault."""

    fault: str
    strikes: int = 0
    in_flight: int = 0
    """Streams under way when it struck, over all strikes."""
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    pause: float = 0.0
    refusals: int = 0

    def add(self, ask: Ask) -> None:
        self.verdicts[ask.verdict] += 1
        self.refusals += ask.refusals
        if ask.verdict in ("right", "error") and ask.manner == "reads" and ask.question.streams:
            self.pause = max(self.pause, ask.pause)

    def excuses(self, verdict: Verdict) -> bool:
        """Whether answers may end like this under this fault."""
        fault = FAULTS.get(self.fault)
        match verdict:
            case "error":
                return self.fault == SEVERAL or (fault is not None and fault.errors)
            case "cut":
                return fault is not None and fault.cuts
            case _:
                return verdict in ("right", "left")

    @property
    def failed(self) -> bool:
        return any(count and not self.excuses(verdict) for verdict, count in self.verdicts.items())


class Report:
    """Everything a run found out."""

    def __init__(self, seed: int, model: str) -> None:
        self.seed = seed
        self.model = model
        self.rows: dict[str, Row] = {}
        self.problems: list[str] = []
        """What is wrong apart from answers: processes that ended by themselves, requests that left traces."""
        self.details: list[str] = []
        self.samples: list[dict[str, float]] = []
        """Figures of a run that looks for leaks, in their order."""

    def row(self, fault: str) -> Row:
        return self.rows.setdefault(fault, Row(fault))

    def add(self, fault: str, asks: Iterable[Ask]) -> None:
        row = self.row(fault)
        for ask in asks:
            row.add(ask)
            if (ask.verdict == "error" or not row.excuses(ask.verdict)) and len(self.details) < DETAILS_KEPT:
                self.details.append(f"{fault}: {ask.request_id} {ask.question.name} {ask.verdict}: {ask.detail}")

    @property
    def failed(self) -> bool:
        return bool(self.problems) or any(row.failed for row in self.rows.values())

    def table(self) -> Table:
        columns = ("fault", "times", "in flight", *VERDICTS, "refused", "longest pause", "")
        table = Table(*columns, title=f"tgq chaos, {self.model} model, seed {self.seed}")
        for row in self.rows.values():
            numbers = [row.strikes, row.in_flight, *(row.verdicts[verdict] for verdict in VERDICTS), row.refusals]
            table.add_row(row.fault, *map(str, numbers), f"{row.pause:.2f} s", "FAILED" if row.failed else "ok")
        return table

    def json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "model": self.model,
            "failed": self.failed,
            "faults": {
                row.fault: {
                    "times": row.strikes,
                    "in_flight": row.in_flight,
                    **{verdict: row.verdicts[verdict] for verdict in VERDICTS},
                    "refused": row.refusals,
                    "longest_pause_seconds": round(row.pause, 3),
                    "failed": row.failed,
                }
                for row in self.rows.values()
            },
            "problems": self.problems,
            "details": self.details,
            "samples": self.samples,
        }
