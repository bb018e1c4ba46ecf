"""What is told of the hub library's counting."""

from __future__ import annotations

from typing import Any

import pytest

from common import hub_download
from workers.engine.load_progress import shown_bytes


def bars(told: list[tuple[int, int]], size: int) -> tuple[Any, Any]:
    """As the library makes them: one for bytes on the network, one for bytes written, whose total grows file by file."""
    bar = hub_download._bar(lambda done, total: told.append((done, total)), size)
    options = {"total": 0, "initial": 0, "unit": "B", "unit_scale": True}
    return bar(desc="Downloading bytes", **options), bar(desc="Reconstructing", **options)


def test_bytes_are_told_of_a_total_that_is_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_download, "TELL_SECONDS", 0.0)
    told: list[tuple[int, int]] = []
    network, written = bars(told, 300)
    written.total = 100
    written.update(60)
    network.update(50)
    written.total = 310
    written.update(250)
    assert told == [(60, 300), (310, 310)]


def test_progress_is_told_rarely_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_download, "TELL_SECONDS", 3600.0)
    told: list[tuple[int, int]] = []
    _, written = bars(told, 0)
    written.total = 1000
    for _ in range(1000):
        written.update(1)
    assert told in ([(1000, 1000)], [(1, 1000), (1000, 1000)])


def test_bars_of_files_are_not_bytes_and_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int]] = []
    bar = hub_download._bar(lambda done, total: told.append((done, total)), 0)
    with bar(total=3, desc="Fetching 3 files") as files:
        files.update(1)
        files.set_description("Fetched")
        files.set_postfix_str("fast")
    assert not told
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [
        (512, 1024, "0.5 of 1.0 kB"),
        (1_500_000, 25_415_128, "1.5 of 25.4 MB"),
        (1_200_000_000, 4_900_000_000, "1.2 of 4.9 GB"),
    ],
)
def test_sizes_are_shown_in_the_unit_of_the_whole(done: int, total: int, shown: str) -> None:
    assert shown_bytes(done, total) == shown
