"""Clients that connect faster than a node accepts wait for their turn."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from tests.integration.web.serving import web_node

CONNECTIONS = 400
"""More than asyncio's own backlog of 100, fewer than gunicorn's 2048 and any kernel's limit."""


def test_a_burst_of_connections_is_not_reset(tmp_path: Path, redis_url: str) -> None:
    with web_node(tmp_path, redis_url) as node, contextlib.ExitStack() as stack:
        # The first answer comes after the first sign of life, which restores the backlog.
        assert httpx.get(f"{node.url}/info").status_code == 200
        processes = [psutil.Process(node.process.pid), *psutil.Process(node.process.pid).children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
            stack.callback(process.send_signal, signal.SIGCONT)
        address = urlsplit(node.url)
        waiting = set()
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex((str(address.hostname), int(address.port or 0)))
            waiting.add(connection)
        deadline = time.monotonic() + 30
        while waiting and time.monotonic() < deadline:
            _, connected, _ = select.select([], list(waiting), [], 0.1)
            waiting -= {one for one in connected if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0}
        assert not waiting
