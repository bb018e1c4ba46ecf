"""Falcon under gunicorn with nothing behind it: each request is answered with the frames in the file BARE_FRAMES.

What the relay is compared with: the same bytes, frame by frame, from the same framework and server, without a queue.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import falcon
import falcon.asgi


class Replay:
    """Answers every POST with the same stream."""

    def __init__(self, frames: list[bytes]) -> None:
        self._frames = frames

    async def on_post(self, req: falcon.asgi.Request, resp: falcon.asgi.Response) -> None:
        await req.get_media()
        resp.content_type = "text/event-stream"
        resp.stream = self._replay()

    async def _replay(self) -> AsyncIterator[bytes]:
        for frame in self._frames:
            yield frame


def create_app() -> falcon.asgi.App[falcon.asgi.Request, falcon.asgi.Response]:
    """The bare application (`ops.bench.bare_server:create_app()`)."""
    body = Path(os.environ["BARE_FRAMES"]).read_bytes()
    app = falcon.asgi.App()
    app.add_route("/generate_stream", Replay([frame + b"\n\n" for frame in body.split(b"\n\n") if frame]))
    return app
