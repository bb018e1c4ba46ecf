"""What all streams of a client have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.client.control import ControlSender
from common.client.counters import ClientCounters
from common.client.dispatch import Dispatcher
from common.client.failover import Resender
from common.client.relay import Relay
from common.client.worker_watch import WorkerWatch
from common.keys import Keys
from common.settings import Settings

if TYPE_CHECKING:
    from common.tracing.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one `GenerationClient`."""

    settings: Settings
    keys: Keys
    relay: Relay
    dispatcher: Dispatcher
    resender: Resender
    control: ControlSender
    watch: WorkerWatch
    counters: ClientCounters
    tracing: Tracing | None = None
