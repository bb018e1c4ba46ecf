"""Every Redis name of the service: who writes it, who reads it, when it goes.

| name                          | type    | written by             | read by                | expires                      |
|-------------------------------|---------|------------------------|------------------------|------------------------------|
| {p}:queue:{model}:{class}     | list    | submitters, reaper     | workers                | when empty                   |
| {queue}:tenant:{tenant}       | list    | submitters, reaper     | workers                | when empty                   |
| {queue}:turns                 | zset    | as the queue, workers  | workers                | with the queue               |
| {queue}:virtual               | string  | workers                | as the queue, workers  | with the queue               |
| {queue}:depth                 | hash    | as the queue, workers  | everyone who asks      | with the queue               |
| {queue}:bell                  | list    | submitters, reaper     | workers                | with the queue, or rung      |
| {queue}:drained               | hash    | workers                | submitters             | 12 * RATE_SECONDS            |
| {p}:unacked:{worker}          | hash    | worker                 | worker, reaper         | empty on exit, reaper        |
| {p}:unacked_index:{worker}    | zset    | worker                 | worker, reaper         | empty on exit, reaper        |
| {p}:workers                   | zset    | worker heartbeat, pull | web, reaper, `tgq ps`  | entry: on exit or by reaper  |
| {p}:worker:{worker}           | string  | worker heartbeat       | web, `tgq ps`          | WORKER_RECORD_SECONDS        |
| {p}:attempt:{request}         | string  | submitters (re-send)   | workers                | ATTEMPTS_SECONDS             |
| {p}:attempts:{request}        | set     | reaper, submitters     | reaper, submitters     | ATTEMPTS_SECONDS             |
| {p}:cancelled:{request}       | string  | submitters             | workers                | CANCELLED_(RUNNING_)SECONDS  |
| {p}:admission                 | hash    | web (admission script) | web                    | process: by its lease        |
| {p}:admission_leases          | zset    | web (admission script) | web                    | entry: when its lease is out |
| {p}:key_limits:{key's name}   | hash    | web (key limits)       | web                    | by lease, or when drained    |
| {p}:idempotency:{digest}      | hash    | web (idempotent calls) | web                    | by lease, or its setting     |
| {p}:stream:{digest}           | hash    | web (resumable stream) | web                    | `resume_seconds` unrenewed   |
| {p}:stream_tokens:{digest}    | list    | web (resumable stream) | web                    | with its hash                |
| {p}:stream_known:{digest}     | string  | web (resumable stream) | web                    | STREAM_KNOWN_SECONDS after   |
| {p}:file:{file}               | string  | web, batch runners     | web, batch runners     | `expires_at` and a day       |
| {p}:files:{tenant}            | zset    | web, batch runners     | web                    | with the last file in it     |
| {p}:file_expiry               | zset    | web, batch runners     | batch runners          | entry: when its bytes go     |
| {p}:file_users:{file}         | set     | web, batch runners     | web                    | with its batches             |
| {p}:batch:{batch}             | hash    | web, batch runners     | web, batch runners     | `batch_retention` after      |
| {p}:batch_parts:{batch}       | hash    | batch runners          | batch runners          | with its batch               |
| {p}:batches:{tenant}          | zset    | web                    | web                    | with the last batch in it    |
| {p}:waiting_batches:{tenant}  | zset    | web, batch runners     | batch runners          | entry: when it is claimed    |
| {p}:batch_turns               | zset    | web, batch runners     | batch runners          | entry: when nothing waits    |
| {p}:held_batches              | zset    | batch runners          | batch runners          | entry: at its end, or claim  |
| {p}:webhooks                  | zset    | batch runners          | batch runners          | entry: when told or given up |
| {p}:webhook_tries             | hash    | batch runners          | batch runners          | entry: with that of webhooks |
| {p}:web                       | channel | web (WebControl)       | all web processes      | -                            |
| {p}:web:{process}             | channel | web (WebControl)       | one web process        | -                            |
| {p}:reply:{process}           | channel | workers (StepFrames)   | one web process        | -                            |
| {p}:control                   | channel | submitters (Control)   | all workers            | -                            |
| {p}:control:{worker}          | channel | submitters (Control)   | one worker             | -                            |
| {p}:answers:{question}        | list    | workers (HeldJobs)     | `tgq running` ...      | ANSWERS_SECONDS              |
| {p}:dead                      | list    | reaper                 | people                 | trimmed to DEAD_JOBS_KEPT    |

A queue is a list for each tenant (the very name is that of the tenant ""; others' names are percent-encoded) and what is beside
it: whose turn it is (`turns`, `virtual`; see `common.fair_queue`), what waits in all (`depth`), at most one entry that wakes an
idle worker (`bell`). "With the queue": when the last job is cancelled, or a worker next finds nothing there.

`attempt` is the number of a request's newest attempt (none: the first), so that a late message of an older one does no
work. `attempts` holds `{attempt}:{worker}` for each worker that was lost with the request: the reaper adds those that had not
accepted it, the submitter those that had; a request with `max_attempts` of them is given up, a new token clears it.

Celery's own names (`_kombu.binding.*`, `*.pidbox`) are beside these. Prompts and answers are only in the queue, the
unacked hash and on the channels; `{p}:dead` keeps headers, not bodies. Only where a caller sent an `Idempotency-Key` or
`x-tgq-resume` its answer is kept as well, for `idempotency_seconds` or `resume_seconds` (settings).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from common.wire import JobClass

WORKER_RECORD_SECONDS = 15
ATTEMPTS_SECONDS = 3600
CANCELLED_SECONDS = 3600
CANCELLED_RUNNING_SECONDS = 120
"""Of a job that a worker has: what is left to hear of it is a worker that was away, and lets it go when it is back."""
STREAM_KNOWN_SECONDS = 3600
"""How long after a resumable stream has gone its caller is told that there was one."""
ANSWERS_SECONDS = 10
DEAD_JOBS_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Keys:
    """Redis names under one prefix (setting `TGQ_KEY_PREFIX`)."""

    prefix: str = "tgq"

    def queue(self, model: str, job_class: JobClass) -> str:
        # Readable, and no two models share one.
        return f"{self.prefix}:queue:{quote(model, safe='/')}:{job_class}"

    @property
    def queues(self) -> str:
        """Pattern of all names that begin like a queue's."""
        return f"{self.prefix}:queue:*"

    def model_of(self, name: bytes | str) -> str | None:
        """The model whose queue, or what is beside it, has this name."""
        text = name.decode() if isinstance(name, bytes) else name
        found = re.match(f"{re.escape(self.prefix)}:queue:([^:]+):", text)
        return unquote(found[1]) if found else None

    @staticmethod
    def tenant_queue(queue: str, tenant: str) -> str:
        """The list of one tenant's jobs in a queue."""
        return f"{queue}:tenant:{quote(tenant, safe='')}" if tenant else queue

    @staticmethod
    def depth(queue: str) -> str:
        """Counts of what waits in a queue; see `common.queue_depth`."""
        return f"{queue}:depth"

    @staticmethod
    def bell(queue: str) -> str:
        return f"{queue}:bell"

    def unacked(self, worker: str) -> str:
        return f"{self.prefix}:unacked:{worker}"

    def unacked_index(self, worker: str) -> str:
        return f"{self.prefix}:unacked_index:{worker}"

    def unacked_mutex(self, worker: str) -> str:
        """Lock kombu insists on having a name for; never contended, every worker has its own."""
        return f"{self.prefix}:unacked_mutex:{worker}"

    @property
    def workers(self) -> str:
        return f"{self.prefix}:workers"

    def worker(self, worker: str) -> str:
        return f"{self.prefix}:worker:{worker}"

    def attempt(self, request: str) -> str:
        return f"{self.prefix}:attempt:{request}"

    def attempts(self, request: str) -> str:
        return f"{self.prefix}:attempts:{request}"

    def cancelled(self, request: str) -> str:
        return f"{self.prefix}:cancelled:{request}"

    @property
    def admission(self) -> str:
        return f"{self.prefix}:admission"

    @property
    def admission_leases(self) -> str:
        return f"{self.prefix}:admission_leases"

    def key_limits(self, name: str) -> str:
        return f"{self.prefix}:key_limits:{name}"

    def idempotency(self, digest: str) -> str:
        """Of one caller's idempotency key; the digest keeps callers apart and their words out of names."""
        return f"{self.prefix}:idempotency:{digest}"

    def stream(self, digest: str) -> str:
        """Of one caller's resumable stream; the digest is as that of an idempotency key."""
        return f"{self.prefix}:stream:{digest}"

    def stream_tokens(self, digest: str) -> str:
        return f"{self.prefix}:stream_tokens:{digest}"

    def stream_known(self, digest: str) -> str:
        """That there was such a stream, and nothing of what it said."""
        return f"{self.prefix}:stream_known:{digest}"

    def file(self, file: str) -> str:
        return f"{self.prefix}:file:{file}"

    def files(self, tenant: str) -> str:
        """Ids of all files of one caller."""
        return f"{self.prefix}:files:{tenant}"

    @property
    def file_expiry(self) -> str:
        """`{tenant}/{id}` of every file whose bytes may be in storage, by the Unix seconds they go at."""
        return f"{self.prefix}:file_expiry"

    def file_users(self, file: str) -> str:
        """Ids of the open batches whose input it is."""
        return f"{self.prefix}:file_users:{file}"

    def batch(self, batch: str) -> str:
        return f"{self.prefix}:batch:{batch}"

    def batch_parts(self, batch: str) -> str:
        return f"{self.prefix}:batch_parts:{batch}"

    def batches(self, tenant: str) -> str:
        """Ids of all batches of one caller."""
        return f"{self.prefix}:batches:{tenant}"

    def waiting_batches(self, tenant: str) -> str:
        """Ids of those that want a runner."""
        return f"{self.prefix}:waiting_batches:{tenant}"

    @property
    def batch_turns(self) -> str:
        """Callers of whom batches wait, by whose turn it is."""
        return f"{self.prefix}:batch_turns"

    @property
    def held_batches(self) -> str:
        """`{tenant}/{id}` of those that have a runner, by when its lease is out (Unix milliseconds)."""
        return f"{self.prefix}:held_batches"

    @property
    def webhooks(self) -> str:
        """`{tenant}/{id}` of batches whose end is to be told, by when that is due (Unix seconds)."""
        return f"{self.prefix}:webhooks"

    @property
    def webhook_tries(self) -> str:
        """How often that was tried, by the same names."""
        return f"{self.prefix}:webhook_tries"

    @property
    def web(self) -> str:
        return f"{self.prefix}:web"

    def web_of(self, process: str) -> str:
        return f"{self.prefix}:web:{process}"

    def answers(self, question: str) -> str:
        """Where workers answer an operator."""
        return f"{self.prefix}:answers:{question}"

    def reply(self, process: str) -> str:
        return f"{self.prefix}:reply:{process}"

    @property
    def control(self) -> str:
        return f"{self.prefix}:control"

    def control_of(self, worker: str) -> str:
        return f"{self.prefix}:control:{worker}"

    @property
    def dead(self) -> str:
        return f"{self.prefix}:dead"
