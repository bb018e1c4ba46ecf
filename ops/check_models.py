"""Checks which model types the engine serves: a tiny random model of each goes through the loader and its self-check.

Without arguments all types that transformers has a causal language model for are checked, with some those alone (exit
status 1 when one is refused); `--write FILE` makes a page of the result, docs/models.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from types import FrameType

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Everything here is local.

from common.settings import Settings
from ops.tiny_models import tiny_options
from workers.engine.attention import ModelRefused
from workers.engine.model_loader import load_runner
from workers.engine.random_model import causal_model_types, write_random_model

SECONDS = 30
"""A model that takes longer to make or to check counts as not checked."""

_PAGE = """# Models

The engine serves every causal language model of transformers that passes a check when it is loaded: a prompt of 24
tokens, in chunks and token by token beside another sequence, must give the logits of the model's own forward. In half
precision they may be off by little more than rounding alone makes of them, which is measured each time. A model that does not pass is
refused with the reason. What follows is made by `python -m ops.check_models --write docs/models.md`
with small random models of all types that transformers {version} knows.

## Served ({served_count})

{served}

Sliding windows, soft caps, attention sinks, latent attention and mixtures of experts are among them. On CPU the results
of dense models are the same bits in any batch; a mixture computes the tokens of an expert together, and its last bits may
depend on the company.

## Refused ({refused_count})

| type | reason |
|---|---|
{refused}

## Not checked ({unchecked_count})

Types that could not be made small enough: most read images or sound and carry one of the types above inside. The check
when they are loaded decides.

{unchecked}
"""


class _TooSlow(BaseException):
    """Not caught by a library that hides errors."""


def check(model_type: str) -> str | None:
    """Load a tiny model of the type.

    Returns:
        None when it passed, else the reason.

    Raises:
        ValueError: no tiny model of this type can be made.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            write_random_model(Path(folder), model_type, tiny_options(model_type))
        except Exception as error:  # whatever a configuration or a model's own code raises says the same: not checked
            raise ValueError(f"{type(error).__name__}: {error}") from error
        settings = Settings.of(model_id=folder, engine_threads=1, max_batch_total_tokens=1024, device="cpu")
        try:
            load_runner(settings, lambda stage, fraction: None)
        except ModelRefused as error:
            return str(error).replace(folder, "the model")
        return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types; all by default")
    parser.add_argument("--write", type=Path, help="write the page here")
    given = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGALRM, _too_slow)
    served: list[str] = []
    refused: dict[str, str] = {}
    unchecked: dict[str, str] = {}
    for model_type in given.types or causal_model_types():
        signal.alarm(SECONDS)
        try:
            reason = check(model_type)
            if reason is None:
                served.append(model_type)
            else:
                refused[model_type] = reason
        except (ValueError, _TooSlow) as error:
            unchecked[model_type] = str(error)
        finally:
            signal.alarm(0)
        verdict = "served" if model_type in served else _line(refused.get(model_type) or f"? {unchecked[model_type]}")
        print(f"{model_type:28} {verdict}", flush=True)
    print(f"{len(served)} served, {len(refused)} refused, {len(unchecked)} not checked")
    if given.write:
        given.write.write_text(_page(served, refused, unchecked), encoding="utf-8")
    return 1 if given.types and (refused or unchecked) else 0


def _page(served: list[str], refused: dict[str, str], unchecked: dict[str, str]) -> str:
    from importlib.metadata import version

    return _PAGE.format(
        version=".".join(version("transformers").split(".")[:2]),
        served=", ".join(f"`{name}`" for name in served),
        served_count=len(served),
        refused="\n".join(f"| `{name}` | {_line(reason)} |" for name, reason in refused.items()),
        refused_count=len(refused),
        unchecked=", ".join(f"`{name}`" for name in unchecked),
        unchecked_count=len(unchecked),
    )


def _line(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= 160 else f"{line[:157]}..."


def _too_slow(signum: int, frame: FrameType | None) -> None:
    raise _TooSlow(f"takes longer than {SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
