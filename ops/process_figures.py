"""What Linux tells of a running process."""

from __future__ import annotations

from pathlib import Path


def children(pid: int) -> list[int]:
    """Process ids of a process' own children."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def open_files(pid: int) -> int:
    """Its open descriptors."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


def resident_mib(pid: int) -> float:
    """Memory it holds, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def cpu_seconds(pid: int) -> float:
    """CPU time its threads have had, those that have ended excepted."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def catches(pid: int, number: int) -> bool:
    """Whether it has a handler for a signal by now."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split(maxsplit=1)[0], 16)
    return bool(caught >> (number - 1) & 1)
