"""Tells whether a grammar can be used before its request is queued, whatever the grammar does to whoever tries it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import msgspec

from common.errors import InvalidRequest, ServiceUnavailable, error_from_worker
from common.grammar import Grammar, grammar_error

PROCESSES = 2
START_SECONDS = 30.0
"""Time a checking process has to start in: that is not the grammar's fault."""
_PATIENCE = 4
"""Grammars that may each take their whole time before one's own."""
_REMEMBERED = 256


class GrammarChecker:
    """A few processes that compile grammars on trial; one that takes too long is killed, and its grammar refused.

    The processes are started when they are needed. Verdicts are remembered.
    """

    def __init__(self, timeout: float, processes: int = PROCESSES) -> None:
        """
        Args:
            timeout: seconds one grammar may take.
            processes: grammars tried at the same time.
        """
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="grammar")
        self._processes = [_CheckingProcess() for _ in range(processes)]
        self._idle = list(self._processes)
        self._verdicts: OrderedDict[Grammar, str | None] = OrderedDict()
        self._lock = threading.Lock()

    async def check(self, grammar: Grammar) -> None:
        """Return when the grammar can be used.

        Raises:
            InvalidRequest: it cannot; says why.
            ServiceUnavailable: no checking process can be started.
        """
        if grammar in self._verdicts:
            message = self._verdicts[grammar]
        else:
            trial = asyncio.get_running_loop().run_in_executor(self._threads, self._try, grammar)
            try:
                message = await asyncio.wait_for(trial, _PATIENCE * self._timeout + START_SECONDS)
            except TimeoutError:
                raise ServiceUnavailable("Too many grammars wait to be checked") from None
        if message is not None:
            raise error_from_worker(InvalidRequest.error_type, message)

    def close(self) -> None:
        """End the processes; a check that runs is refused."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()

    def _try(self, grammar: Grammar) -> str | None:
        with self._lock:
            process = self._idle.pop()  # There is one for each thread.
        try:
            message = process.check(grammar, self._timeout)
        finally:
            with self._lock:
                self._idle.append(process)
        with self._lock:
            self._verdicts[grammar] = message
            if len(self._verdicts) > _REMEMBERED:
                self._verdicts.popitem(last=False)
        return message


class _CheckingProcess:
    """One process (`common.grammar_process`), started again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def check(self, grammar: Grammar, timeout: float) -> str | None:
        """Why the grammar is refused, as a caller is told; None: it can be used."""
        connection = self._connect()
        try:
            connection.send_bytes(msgspec.msgpack.encode(grammar))
            if not connection.poll(timeout):
                self._stop()
                return grammar_error(f"it takes more than {timeout:g} seconds to compile").message
            return msgspec.msgpack.decode(connection.recv_bytes(), type=str | None)
        except (EOFError, OSError):
            # It died of this grammar: of its memory limit, most likely.
            self._stop()
            return grammar_error("it is too complex").message

    def kill(self) -> None:
        """End the process, from any thread."""
        if (process := self._process) is not None:
            process.kill()
            process.wait()

    def _stop(self) -> None:
        self.kill()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def _connect(self) -> Connection:
        if self._connection is not None and self._process is not None and self._process.poll() is None:
            return self._connection
        self._stop()
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs:
            command = [sys.executable, "-m", "common.grammar_process", str(theirs.fileno())]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        try:
            if self._connection.poll(START_SECONDS):
                self._connection.recv_bytes()
                return self._connection
        except (EOFError, OSError):
            pass  # It died; its own last words are on stderr.
        self._stop()
        raise ServiceUnavailable("Grammars cannot be checked right now")
