"""A bit for each line."""

from __future__ import annotations

from workers.batch.done_lines import DoneLines


def test_each_line_once() -> None:
    done = DoneLines()
    numbers = [1, 7, 8, 9, 1_000_000, 64]
    assert [done.add(number) for number in numbers] == [True] * 6
    assert [done.add(number) for number in numbers] == [False] * 6
    assert done.count == 6
    assert [number for number in range(70) if number in done] == [1, 7, 8, 9, 64]
    assert 1_000_000 in done
    assert 999_999 not in done
    assert 5_000_000 not in done
