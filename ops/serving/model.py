"""Making sure that the default model's files are there."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

from common.model_files import default_model_folder
from common.settings import DEFAULT_MODEL, SCRIPTED_MODEL, Settings
from ops.child_process import spawn
from ops.serving.output import open_output, read_lines
from ops.serving.view import View


class ModelPreparation:
    """The conversion of the packaged model, in a process of its own: it needs libraries that serving does not."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._process: subprocess.Popen[Any] | None = None

    @staticmethod
    def needed(settings: Settings) -> bool:
        """The scripted model uses the default model's tokenizer."""
        return settings.model_id in (DEFAULT_MODEL, SCRIPTED_MODEL) and not default_model_folder(settings).exists()

    def start(self) -> None:
        self._view.progress("preparing the model", 0.0)
        reading, writing = open_output(terminal=False)
        try:
            self._process = spawn([sys.executable, "-P", "-m", "workers.engine.default_model"], stdout=writing)
        finally:
            os.close(writing)
        read_lines(reading, self._on_line)

    def poll(self) -> int | None:
        """The exit status, once it has ended."""
        return self._process.poll() if self._process else None

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _on_line(self, line: str) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # Not every line need be one of progress.
            step = json.loads(line)
            self._view.progress(str(step["stage"]), float(step["fraction"]))
