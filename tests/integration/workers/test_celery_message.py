"""A stock Celery worker, on kombu's stock transport, runs the messages we build."""

from __future__ import annotations

import time
from typing import Any

from celery.contrib.testing.worker import start_worker

from common.celery_app import make_app
from common.celery_message import TASK_NAME, celery_message, job_of
from common.settings import Settings
from tests.integration.workers.support import MODEL, Submitter, until


def test_a_stock_worker_runs_our_messages(submitter: Submitter, redis_url: str) -> None:
    app = make_app(Settings.of(redis_url=redis_url, model_id=MODEL))
    seen: list[Any] = []

    @app.task(name=TASK_NAME, bind=True)  # type: ignore[untyped-decorator]
    def generate(task: Any, job: Any) -> None:
        seen.append((task.request.id, task.request.reply_to, job_of([job])))

    jobs = [submitter.job("a"), submitter.job("b", deadline=time.time() + 60), submitter.job("c", replies=False)]
    late = submitter.job("late", deadline=time.time() - 60)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
        for job in (late, *jobs):
            submitter.client.lpush(submitter.queue(), celery_message(job, submitter.queue()))
        until(lambda: len(seen) == 3)
    app.close()
    assert seen == [(job.id, job.reply_to or "", job) for job in jobs]
