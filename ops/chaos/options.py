"""The command line of `make chaos`."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

from ops.chaos.faults import FAULTS, MIXED

_DESCRIPTION = """Load on two web nodes and two workers while faults strike; every answer is checked.
In make: ARGS="--rounds 20 --faults worker-kill", ARGS="--minutes 30", ARGS="--mode leaks"."""
MODES = ("rounds", "mixed", "leaks", "markers")
REQUESTS = {"leaks": 100_000, "markers": 10_000}
STREAMS = {"scripted": 50, "real": 6}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options, checked and with their defaults.

    Exits with status 2 and a message for a bad command line.
    """
    parser = argparse.ArgumentParser(prog="make chaos", description=_DESCRIPTION)
    parser.add_argument("--mode", choices=MODES, help="default: rounds, mixed with --minutes")
    parser.add_argument("--seed", type=int, help="of the schedule and the questions; default: a new one, printed")
    parser.add_argument("--minutes", type=float, help="length of a mixed run (default 30)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each fault (default 3)")
    parser.add_argument("--faults", help=f"separated by commas; default: all. There are {', '.join(FAULTS)}")
    parser.add_argument("--model", choices=("scripted", "real"), default="scripted")
    parser.add_argument("--streams", type=int, help=f"at a time; default: {STREAMS}")
    parser.add_argument("--requests", type=int, help=f"of the last two modes; default: {REQUESTS}")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--logs", type=Path, help="keep the logs there; default: kept only after a failure")
    options = parser.parse_args(arguments)
    options.seed = secrets.randbits(32) if options.seed is None else options.seed
    options.mode = options.mode or ("mixed" if options.minutes else "rounds")
    options.minutes = options.minutes or 30.0
    options.streams = options.streams or STREAMS[options.model]
    options.requests = options.requests or REQUESTS.get(options.mode)
    names = options.faults.split(",") if options.faults else list(FAULTS if options.mode == "rounds" else MIXED)
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"--faults: there is no {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    options.faults = [FAULTS[name] for name in names]
    return options
