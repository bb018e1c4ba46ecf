"""One worker: a Celery consumer, an engine process, and the threads between them and Redis."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import redis
import structlog
from celery import signals
from celery.app.trace import setup_worker_optimizations
from celery.worker import WorkController
from celery.worker import state as celery_state

from common.celery_app import UNACKED_FOREVER_SECONDS, make_app
from common.errors import DeadlineExceeded
from common.garbage import settle_heap
from common.keys import Keys
from common.redis_checks import RedisUnfit, check_redis
from common.redis_clients import sync_pool, sync_redis
from common.settings import Settings
from common.tracing.setup import start_tracing
from common.wire import Cancelled, WorkerRecord, WorkerState
from workers.acks import Acks
from workers.consumer import JobConsumer
from workers.control import ControlListener
from workers.dispatcher import Dispatcher
from workers.drain import HANDED_OVER, Drain
from workers.engine.messages import EngineOutput, LoadProgress, Ready
from workers.engine_process import EngineProcess
from workers.heartbeat import Heartbeat
from workers.intake import EngineIntake
from workers.job_spans import JobSpans
from workers.marks import Marks
from workers.pool import EnginePool, Generate
from workers.publisher import Outgoing, Publisher
from workers.refusal import refusal

log = structlog.get_logger()

CONNECT_ATTEMPTS = 6
"""Tries to reach Redis at the start, over about 7 s."""
PUBLISH_LAST_SECONDS = 5.0


def _nobody_looks(_progress: LoadProgress) -> None:
    pass


def run_worker(settings: Settings, show: Callable[[LoadProgress], None] = _nobody_looks) -> int:
    """Run one worker until it is told to stop (SIGTERM, SIGINT; a second one stops it at once).

    Args:
        show: told how far the model has been loaded, on the engine's thread; must not block.

    Returns:
        Exit code: 0 after a stop that was asked for, 1 when Redis cannot be reached at the start or the engine cannot
        load (at the start, or again and again later); the log says why.
    """
    return Worker(settings, show).run()


class Worker:
    """Wires the parts; each is described in its own module."""

    def __init__(self, settings: Settings, show: Callable[[LoadProgress], None] = _nobody_looks) -> None:
        host = socket.gethostname()
        self.id = f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
        self._settings = settings
        self._show = show
        self._started_at = time.time()
        self._host = host
        self._keys = keys = Keys(settings.key_prefix)
        self._client = sync_redis(settings)
        self._loop_client = sync_redis(settings)
        self._acks = Acks(keys, self.id)
        self._engine = EngineProcess(settings, self)
        self._intake = EngineIntake(self._loop_client)
        self._tracing = start_tracing(settings, "worker", self.id)
        self._publisher = Publisher(settings, self.id, channels=self._channels, gone=self._submitter_gone)
        self._dispatcher = self._intake.dispatcher = Dispatcher(
            self.id,
            self._engine,
            max_attempts=settings.max_attempts,
            batch_reserve=settings.batch_reserve,
            send=self._publisher.send,
            freed=self._intake.freed,
            spans=None if self._tracing is None else JobSpans(self._tracing, keys),
        )
        self._marks = self._intake.marks = Marks(keys, self.id, self._dispatcher, max_attempts=settings.max_attempts)
        self._control = ControlListener(
            settings,
            self.id,
            self._dispatcher,
            self._publisher,
            self._marks,
            changed=self._state_changed,
        )
        self._heartbeat = Heartbeat(settings, self.id, self.record, returned=self._marks.look_again)
        self._intake.recovered = self._heartbeat.beat_now
        self._drain = Drain(
            settings, self._client, self._dispatcher, self._publisher, self._acks, announce=self._heartbeat.beat
        )
        self._exit_code = 0

    def run(self) -> int:
        self._install_signals()
        if not self._reach_redis():
            return 0 if self._drain.requested else 1
        self._heartbeat.start()
        self._publisher.start()
        self._engine.start()
        try:
            if not self._wait_loaded():
                return 0 if self._drain.requested else 1
            self._control.start()
            self._heartbeat.beat_now()
            settle_heap()
            log.info("worker_ready", worker=self.id, model=self._settings.model_name)
            return self._consume()
        finally:
            self._shut_down()

    def record(self) -> WorkerRecord:
        """What this worker says of itself with every heartbeat."""
        accepted, waiting = self._dispatcher.counts()
        loading = self._dispatcher.loading
        return WorkerRecord(
            id=self.id,
            pid=os.getpid(),
            engine_pid=self._engine.pid,
            host=self._host,
            model=self._settings.model_name,
            state=self._state(),
            started_at=self._started_at,
            progress=loading.fraction,
            stage=loading.stage,
            stage_detail=loading.detail,
            running=accepted,
            waiting=waiting,
            card=self._dispatcher.card,
            stats=self._dispatcher.stats.total(),
        )

    def _state(self) -> WorkerState:
        if self._drain.requested or self._dispatcher.paused:
            return "drained" if self._dispatcher.paused and not self._dispatcher.requests() else "draining"
        if self._dispatcher.ready:
            return "restarting" if self._intake.stuck else "ready"
        return "starting" if self._dispatcher.card is None else "restarting"

    # -- what the engine's thread calls (`EngineListener`) --------------------------------------------------------------

    def on_progress(self, progress: LoadProgress) -> None:
        news = progress.stage != self._dispatcher.loading.stage
        self._dispatcher.on_progress(progress)
        if news:
            self._heartbeat.beat_now()
        self._show(progress)

    def on_ready(self, ready: Ready) -> None:
        self._dispatcher.on_ready(ready)
        self._heartbeat.beat_now()

    def on_output(self, output: EngineOutput) -> None:
        self._dispatcher.on_output(output)

    def on_lost(self, reason: str) -> None:
        self._dispatcher.on_lost(reason)
        self._heartbeat.beat_now()

    def on_given_up(self, reason: str) -> None:
        log.error("worker_gives_up", reason=reason)
        self._exit_code = 1
        self._drain.request()

    def busy(self) -> bool:
        return self._dispatcher.busy()

    # -- steps of a life ------------------------------------------------------------------------------------------------

    def _channels(self) -> set[str]:
        return self._dispatcher.channels()

    def _state_changed(self) -> None:
        self._heartbeat.beat_now()

    def _submitter_gone(self, channel: str) -> None:
        self._dispatcher.cancel_channel(channel)

    def _install_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return

        def stop(_signal: int, _frame: FrameType | None) -> None:
            self._drain.request()

        celery_state.should_stop = None
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)

    def _reach_redis(self) -> bool:
        for attempt in range(1, CONNECT_ATTEMPTS + 1):
            try:
                for advice in check_redis(self._client):
                    log.warning("redis_settings", advice=advice)
                return True
            except (RedisUnfit, redis.AuthenticationError) as error:
                log.error("worker_cannot_start", reason=str(error))
                return False
            except redis.RedisError as error:
                log.warning("redis_unreachable", attempt=attempt, of=CONNECT_ATTEMPTS, reason=str(error))
            if attempt == CONNECT_ATTEMPTS:
                break
            again_at = time.monotonic() + min(0.2 * 2**attempt, 2.0)
            while time.monotonic() < again_at:
                if self._drain.requested:
                    return False
                time.sleep(0.05)
        log.error("worker_cannot_start", reason="Redis cannot be reached; check REDIS_URL")
        return False

    def _wait_loaded(self) -> bool:
        while not self._engine.wait_loaded(0.1):
            if self._drain.requested:
                return False
        if self._engine.load_error is not None:
            log.error("worker_cannot_start", reason=self._engine.load_error)
            return False
        return True

    def _consume(self) -> int:
        app = self._celery_app()
        for name in ("celery", "kombu"):
            # At INFO, Celery logs what tasks return: answers.
            logging.getLogger(name).setLevel(logging.WARNING)
        setup_worker_optimizations(app, self.id)
        signals.task_revoked.connect(self._on_revoked)
        controller = WorkController(
            app=app,
            hostname=f"tgq@{self.id}",
            pool_cls=type(
                "Pool",
                (EnginePool,),
                {
                    "dispatcher": self._dispatcher,
                    "send": self._publisher.send,
                    "arrived": self._intake.pulled,
                    "drain": self._drain.wait,
                },
            ),
            consumer_cls=type("Consumer", (JobConsumer,), {"send": self._publisher.send}),
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        self._drain.start(then=_end_celery)
        controller.start()
        return self._exit_code or int(controller.exitcode or 0)

    def _celery_app(self) -> Any:
        app = make_app(self._settings)
        keys = self._keys
        card = self._dispatcher.card
        app.conf.update(
            # The transport dials by itself, whatever the scheme, the passwords and the certificates.
            broker_url="redis://localhost",
            broker_use_ssl=None,
            broker_transport="workers.transport:Transport",
            broker_transport_options={
                **app.conf.broker_transport_options,
                "dial": partial(
                    # A doorbell waits a second on the server.
                    sync_pool,
                    self._settings,
                    patience=1.0,
                    client_name=f"tgq-worker-{self.id}",
                ),
                "queue_order_strategy": "priority",
                "visibility_timeout": UNACKED_FOREVER_SECONDS,
                "unacked_key": keys.unacked(self.id),
                "unacked_index_key": keys.unacked_index(self.id),
                "unacked_mutex_key": keys.unacked_mutex(self.id),
                "worker": self.id,
                "workers_key": keys.workers,
                "dead_key": keys.dead,
                "intake": self._intake,
                "acks": self._acks,
                "overdue_after": self._settings.batch_overdue_after,
                "overdue_share": self._settings.batch_overdue_share,
            },
            broker_connection_retry=True,
            broker_connection_retry_on_startup=True,
            broker_connection_max_retries=None,
            # Redis refuses writes when it is full or became a replica: wait for better times, do not die.
            broker_channel_error_retry=True,
            worker_concurrency=card.max_batch_size if card is not None else 1,
            # Zero is "no limit by count": the room the engine has decides.
            worker_prefetch_multiplier=0,
            worker_cancel_long_running_tasks_on_connection_loss=False,
            worker_enable_prefetch_count_reduction=False,
            worker_disable_rate_limits=True,
            worker_enable_remote_control=True,
            worker_send_task_events=False,
            worker_hijack_root_logger=False,
        )
        app.register_task(Generate())
        return app

    def _on_revoked(self, *, request: Any, expired: bool, **_options: Any) -> None:
        """Celery drops expired and revoked messages before the pool sees them; their submitters are told here."""
        headers = {"id": request.id, "attempt": getattr(request, "attempt", 1)}
        frames = refusal(headers, {"reply_to": request.reply_to}, DeadlineExceeded("The request's time was over"))
        if not expired:
            frames = [Outgoing(frame.channel, frame.request, frame.attempt, Cancelled()) for frame in frames]
        self._publisher.send(frames)

    def _shut_down(self) -> None:
        self._drain.requested = True
        self._dispatcher.close()
        self._dispatcher.hand_over(HANDED_OVER)
        cut_short = self._drain.at_once or bool(self._dispatcher.requests())
        self._engine.stop(at_once=cut_short or self._dispatcher.card is None)
        self._publisher.stop(PUBLISH_LAST_SECONDS)
        self._drain.finish()
        if self._dispatcher.card is not None:
            self._control.stop()
        self._heartbeat.stop()
        self._client.close()
        self._loop_client.close()
        if self._tracing is not None:
            self._tracing.stop()
        log.info("worker_stopped", worker=self.id)


def _end_celery() -> None:
    # Its event loop looks at this several times a second.
    celery_state.should_stop = 0
