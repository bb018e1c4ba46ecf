"""TCP ports to listen on."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_TRIES = 50
_given: set[int] = set()
"""Who asked for them may not listen yet."""


class PortTaken(RuntimeError):
    """Something else listens there, or the address is not this machine's."""


def free_port(host: str) -> int:
    """A free port below the range the kernel gives to outgoing connections, where there is such a range.

    Inside that range a client that keeps dialling a dead server's port can come to talk to itself, and then holds the
    port the server wants back. No port of that kind is given twice by a process.

    Raises:
        PortTaken: nothing can listen on `host`.
    """
    try:
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first_outgoing = 0
    candidates = random.sample(range(10_000, first_outgoing), _TRIES) if first_outgoing > 10_000 + _TRIES else []
    for port in [*(port for port in candidates if port not in _given), 0]:
        try:
            free = _bind(host, port)
        except OSError as error:
            problem = error
        else:
            _given.add(free)
            return free
    raise PortTaken(f"cannot listen on {host}: {problem.strerror}; HOSTNAME chooses another address")


def check_port(host: str, port: int) -> None:
    """See that a server can listen there.

    Raises:
        PortTaken: it cannot; the message says why.
    """
    try:
        _bind(host, port)
    except OSError as error:
        raise PortTaken(
            f"cannot listen on {host} port {port}: {error.strerror}; PORT and HOSTNAME choose another address"
        ) from None


def _bind(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])
