"""What the Makefile installs with."""

from __future__ import annotations

import signal
import sys

import pytest

from ops import install

PROGRAM = (
    "import os, signal, time; print('Collecting x', flush=True); os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
)


def test_ctrl_c_ends_it_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(install, "PIP", [sys.executable, "-c", PROGRAM])
    monkeypatch.setattr(sys, "argv", ["install.py"])
    # Tests that run several at a time do so in processes that hear no Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert install.main() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "\ninterrupted; `make` goes on from here when it is run again\n"
