"""Plain tables on standard output: nothing is wrapped or cut, so that values can be copied and lines grepped."""

from __future__ import annotations

from collections.abc import Sequence


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length (the first holds the headings) in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
