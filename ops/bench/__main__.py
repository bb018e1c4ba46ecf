"""`make bench`: the relay, what a request costs, the service tax and the added time to first token.

As a table and, with BENCH_OUT, as JSON.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from ops.bench import relay, service_tax, web_cpu


def main() -> None:
    """Run all parts, print the table, write BENCH_OUT."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tgq-bench-") as name:
        directory = Path(name)
        with console.status("relay: 64 streams of 200 ready-made tokens"):
            relayed = relay.measure(directory)
        with console.status("CPU time of web processes"):
            spent = web_cpu.measure(directory)
        with console.status("service tax: 1, 8 and 32 streams of the real model"):
            taxed = service_tax.measure(directory)
    report = {
        "relay_ratio": relayed.ratio,
        "service_tax_32": taxed.tax(32),
        "web_cpu_chat_ms": spent.chat * 1000,
        "web_cpu_chat_added_ms": spent.chat_added * 1000,
        "web_cpu_seconds": {**spent.spent, "tokenizing": spent.tokenizing},
        "ttft_added_p50_ms": taxed.first_token_added * 1000,
        "relay": {"service_tokens_per_second": relayed.service, "bare_tokens_per_second": relayed.bare},
        "service_tax": {str(width): taxed.tax(width) for width in service_tax.WIDTHS},
        "service_tokens_per_second": {str(width): rates for width, rates in taxed.service.items()},
        "engine_tokens_per_second": {str(width): rates for width, rates in taxed.engine.items()},
        "service_first_token_seconds": taxed.service_first_token,
        "engine_first_token_seconds": taxed.engine_first_token,
        "machine": {"cpus": os.cpu_count(), "processor": platform.processor() or platform.machine()},
    }
    table = Table("what", "service", "alone", "figure", title="tgq bench (medians of rounds in turn)")
    table.add_row(
        "relay, 64 streams x 200 tokens (tokens/s)",
        f"{median(relayed.service):.0f}",
        f"{median(relayed.bare):.0f}",
        f"ratio {relayed.ratio:.2f}",
    )
    table.add_row(
        "web process, a chat request (ms of CPU, tokenizing)",
        f"{median(spent.spent['chat']) * 1000:.2f}",
        f"{median(spent.tokenizing) * 1000:.2f}",
        f"beyond it {spent.chat * 1000:.2f}; beyond /generate {spent.chat_added * 1000:.2f}",
    )
    for width in service_tax.WIDTHS:
        table.add_row(
            f"real model, {width} streams (tokens/s)",
            f"{median(taxed.service[width]):.1f}",
            f"{median(taxed.engine[width]):.1f}",
            f"tax {taxed.tax(width):.1%}",
        )
    table.add_row(
        "time to first token, idle (ms)",
        f"{median(taxed.service_first_token) * 1000:.1f}",
        f"{median(taxed.engine_first_token) * 1000:.1f}",
        f"added {taxed.first_token_added * 1000:.1f}",
    )
    console.print(table)
    if out := os.environ.get("BENCH_OUT"):
        Path(out).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
