"""The guidellm benchmark: a short run on text it makes itself, over both of OpenAI's routes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.clients.run_checks import Services

PACKAGES = ("guidellm",)
REQUESTS = 4
OUTPUT_TOKENS = 8


def run(services: Services, route: str, profile: dict[str, Any]) -> Any:
    """Statistics of one run."""
    report = Path(services.folder) / "report.json"
    report.unlink(missing_ok=True)
    options: dict[str, dict[str, Any]] = {
        "backend": {
            "kind": "openai_http",
            "target": services.real,
            "api_key": services.key,
            "request_format": route,
        },
        "profile": profile,
        "constraint": {"kind": "max_requests", "count": REQUESTS},
        "tokenizer": {"kind": "hf_auto", "model": services.model},
        "data": {"kind": "synthetic_text", "prompt_tokens": 16, "output_tokens": OUTPUT_TOKENS},
        "output": {"kind": "json", "path": str(report)},
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", json.dumps(value))]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("guidellm")), "run", *arguments, "--disable-progress"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    sys.stderr.write(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-400:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    return benchmark


def assert_all_well(benchmark: Any) -> None:
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (REQUESTS, 0), totals
    # It asks for exactly that many tokens (`ignore_eos`) and reads the counts from the usage.
    counts = benchmark["metrics"]["output_token_count"]["successful"]
    assert counts["min"] == counts["max"] == OUTPUT_TOKENS, counts
    assert benchmark["metrics"]["time_to_first_token_ms"]["successful"]["median"] > 0


def check_chat(services: Services) -> None:
    assert_all_well(run(services, "/v1/chat/completions", {"kind": "synchronous"}))


def check_completions(services: Services) -> None:
    assert_all_well(run(services, "/v1/completions", {"kind": "concurrent", "streams": 2}))
