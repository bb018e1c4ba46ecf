"""A hub of models for one machine: what the hub library asks of it, over real HTTP."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

SHA = "c0ffee" + "0" * 34
_PART = 256 * 1024


@contextmanager
def hub(repository: str, folder: Path, *, bytes_per_second: float = float("inf")) -> Iterator[str]:
    """Serve a folder as the only model; yields the address for `HF_ENDPOINT`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if re.fullmatch(rf"/api/models/{re.escape(repository)}(/revision/[^/]+)?", path):
                self._json({"id": repository, "sha": SHA, "siblings": [{"rfilename": name} for name in _names(folder)]})
            elif path.startswith(f"/api/models/{repository}/tree/"):
                self._json([_entry(folder / name) for name in _names(folder)])
            elif (file := self._file(path)) is not None:
                self._send_file(file)
            else:
                self._json({"error": "there is no such thing here"}, status=404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_words: object) -> None:
            pass

        def _file(self, path: str) -> Path | None:
            found = re.fullmatch(rf"/{re.escape(repository)}/resolve/[^/]+/(.+)", path)
            return folder / found[1] if found and found[1] in _names(folder) else None

        def _send_file(self, file: Path) -> None:
            data, first = file.read_bytes(), 0
            if wanted := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
                first = int(wanted[1])
            self.send_response(206 if first else 200)
            self.send_header("X-Repo-Commit", SHA)
            self.send_header("ETag", f'"{_digest(file)}"')
            self.send_header("Content-Length", str(len(data) - first))
            self.end_headers()
            for start in range(first, len(data) if self.command == "GET" else 0, _PART):
                self.wfile.write(data[start : start + _PART])
                time.sleep(_PART / bytes_per_second)

        def _json(self, value: object, status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Repo-Commit", SHA)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


def _entry(file: Path) -> dict[str, object]:
    return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _digest(file)}
