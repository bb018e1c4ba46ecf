"""`tgq serve`: the whole service on this machine."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from common.model_files import ModelNotFound
from common.redis_checks import RedisUnfit
from ops.configuration import Configuration
from ops.embedded_redis import RedisUnavailable
from ops.options import BAD_USAGE
from ops.ports import PortTaken
from ops.serving.child import ChildFailed
from ops.serving.service import Service
from ops.serving.view import view_for_stderr


def run(configuration: Configuration) -> int:
    """Serve until told to stop; returns the exit status, 2 when there cannot be such a model."""
    try:
        service = Service(configuration.settings, view_for_stderr())

        def stop(number: int, frame: FrameType | None) -> None:
            service.stop_signals += 1

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)
        return service.run()
    except ModelNotFound as error:
        print(f"tgq: {error}", file=sys.stderr)
        return BAD_USAGE
    except (ChildFailed, RedisUnavailable, RedisUnfit, PortTaken) as error:
        print(f"tgq: {error}", file=sys.stderr)
        return 1
