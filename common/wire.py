"""Every message that crosses Redis or the pipe to the engine, in the order a request meets them.

    web process ── Job (a Celery message) ──────────────▶ queue ─▶ worker ── Job (pipe) ──▶ engine process
    web process ◀── StepFrames (pub/sub, msgpack) ─────── worker ◀── EngineOutput (pipe, msgpack) ── engine process
    web process ── Cancel | Resend | Release (pub/sub) ─▶ worker ── CancelJobs (pipe) ──▶ engine process
    worker ── WorkerRecord (key with expiry, JSON) ─────▶ everyone who wants to know

A request is the same request whoever runs it: frames carry `(request, attempt, sequence)`. `sequence` counts the frames
of one attempt from 0 without a gap; a frame of an older attempt is stale and dropped.

What comes with every token has `gc=False`: it can be in no cycle, and looking for one would cost more than the rest.
"""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec
from msgspec import Struct

from common.parameters import GenerationParameters

WIRE_VERSION = 1
"""Raised when a message changes in a way an older peer would misread."""

JobClass = Literal["interactive", "batch"]
FinishReason = Literal["length", "eos_token", "stop_sequence"]
WorkerState = Literal["starting", "ready", "restarting", "draining", "drained"]
"""draining: takes nothing more and still has jobs; drained: has none left, and waits to be stopped or told to go on."""


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to generate; everything the engine needs, and enough to go on elsewhere after `generated_ids`."""

    version: int = WIRE_VERSION
    id: str
    """Unguessable; unique for ever. Attempts of one request share it."""
    attempt: int = 1
    model: str
    prompt_ids: list[int]
    generated_ids: list[int] = []
    """Tokens earlier attempts produced; the engine goes on behind them."""
    sibling_ids: list[list[int]] = []
    """Like `generated_ids`, of the children 1, 2, ...; missing ones have none."""
    adapter: str | None = None
    """LoRA adapter by name; None: the model as it is."""
    parameters: GenerationParameters
    job_class: JobClass = "interactive"
    reply_to: str | None = None
    """Pub/sub channel of the submitter's process. None: nobody listens, the Celery task ends with the request."""
    submitted_at: float
    """Unix seconds on the submitter's clock."""
    deadline: float | None = None
    """Unix seconds after which the job must not start."""
    tenant: str = ""
    """Whose job it is: each tenant has its fair share of the workers."""
    weight: float = 1.0
    """The tenant's share, relative to others'."""
    cache_salt: str = ""
    """Jobs share computed prompts only with jobs of the same salt."""
    trace: dict[str, str] = {}
    """W3C trace context (`traceparent`, `tracestate`): that of the sending of this attempt, when it is traced."""
    sent_at: float | None = None
    """Unix seconds on the submitter's clock at which a traced attempt was sent to its queue."""

    @property
    def length(self) -> int:
        """Tokens of one sequence at most: prompt plus longest answer."""
        return len(self.prompt_ids) + self.parameters.max_new_tokens

    @property
    def cost(self) -> int:
        """KV-cache tokens this job may come to hold, all children counted: what admission by tokens counts."""
        return self.length * self.parameters.children

    @property
    def known(self) -> int:
        """Those of its `cost` that are known to be needed: the prompt, and what earlier attempts generated."""
        generated = len(self.generated_ids) + sum(map(len, self.sibling_ids))
        return len(self.prompt_ids) * self.parameters.children + generated

    @property
    def longest_answer(self) -> int:
        """Tokens one of its sequences may still add, at most."""
        return -(-(self.cost - self.known) // self.parameters.children)

    def child(self, index: int) -> Job:
        """One child as a job of its own, with its own seed and generated ids; the prompt's details are child 0's."""
        if self.parameters.children == 1:
            return self
        parameters = msgspec.structs.replace(
            self.parameters,
            children=1,
            seed=self.parameters.child_seed(index),
            prefill_logprobs=self.parameters.prefill_logprobs and index == 0,
        )
        generated = [self.generated_ids, *self.sibling_ids]
        ids = generated[index] if index < len(generated) else []
        return msgspec.structs.replace(self, generated_ids=ids, sibling_ids=[], parameters=parameters)


# -- engine -> submitter ------------------------------------------------------------------------------------------------


class TopToken(Struct, frozen=True, gc=False, array_like=True):
    id: int
    text: str
    logprob: float | None
    special: bool


class Token(Struct, frozen=True, gc=False, array_like=True):
    """One generated token."""

    id: int
    text: str
    """What this token adds to the text; empty while a character or a possible stop string is incomplete."""
    logprob: float | None
    special: bool
    top: list[TopToken] = []


class PrefillToken(Struct, frozen=True, gc=False, array_like=True):
    id: int
    text: str
    logprob: float | None
    """None for the first token of the prompt."""
    top: list[TopToken] = []


class Finish(Struct, frozen=True, gc=False, array_like=True):
    """How and with what figures a sequence ended."""

    reason: FinishReason
    generated_tokens: int
    """Tokens generated over all attempts, end-of-text included."""
    inference_seconds: float
    """From the engine's admission to the last token, on the engine's monotonic clock."""
    stop: str | None = None
    """The stop string that matched."""
    prefill: list[PrefillToken] = []


class Accepted(Struct, frozen=True, gc=False, array_like=True, tag="accepted"):
    """The engine of `worker` holds the job; from here on its submitter watches that worker."""

    worker: str


class Tokens(Struct, frozen=True, gc=False, array_like=True, tag="tokens"):
    offset: int
    """Index of the first of `tokens` in the sequence (tokens generated before it)."""
    tokens: list[Token]
    finish: Finish | None = None
    """Set on the last frame of a sequence that ended by itself."""
    child: int = 0
    """Which of the request's sequences."""
    unfinished: int = 0
    """Other children that have not ended."""

    @property
    def ends(self) -> bool:
        """Whether the request is over with this frame."""
        return self.finish is not None and self.unfinished == 0


class Failed(Struct, frozen=True, gc=False, array_like=True, tag="failed"):
    """The request ended with an error (see `common.errors.error_from_worker`)."""

    error_type: str
    message: str
    retryable: bool = False
    """True when the request was not at fault and another attempt may go on from the tokens so far."""
    handed_over: bool = False
    """With `retryable`: the worker let the request go on purpose; it is not counted as an attempt."""


class Cancelled(Struct, frozen=True, gc=False, array_like=True, tag="cancelled"):
    """The request was cancelled; its slot is free."""


FrameBody = Accepted | Tokens | Failed | Cancelled


class Frame(Struct, frozen=True, gc=False, array_like=True):
    request: str
    attempt: int
    sequence: int
    body: FrameBody


class StepFrames(Struct, frozen=True, gc=False, array_like=True):
    """What one engine step has for one submitter process: one pub/sub message."""

    version: int
    worker: str
    frames: list[Frame]


# -- submitter -> worker ------------------------------------------------------------------------------------------------


class Cancel(Struct, frozen=True, tag="cancel"):
    """Stop this request wherever it is; broadcast, because a queued job has no worker yet."""

    request: str
    below: int | None = None
    """Only attempts lower than this: the request goes on elsewhere. Sent to the worker that still runs such a one."""


class Resend(Struct, frozen=True, tag="resend"):
    """A submitter missed frames of a running or just finished request."""

    request: str
    attempt: int
    from_sequence: int


class Release(Struct, frozen=True, tag="release"):
    """The submitter has all frames of these requests; the worker may forget them."""

    requests: list[str]


class Pause(Struct, frozen=True, tag="pause"):
    """An operator's: take no more jobs, or take them again."""

    paused: bool


class ListJobs(Struct, frozen=True, tag="list_jobs"):
    """An operator's: say in the list `answers` what you hold (`common.held_jobs`)."""

    answers: str


Control = Cancel | Resend | Release | Pause | ListJobs


# -- a worker about its model and engine -------------------------------------------------------------------------------


class ModelCard(Struct, frozen=True, kw_only=True):
    """What a loaded model is; shown by `/info`."""

    model_id: str
    sha: str | None = None
    dtype: str
    """As TGI prints it, for example `torch.float32`."""
    device_type: str
    """`cpu`, `cuda`, or `scripted`, which has no weights."""
    max_total_tokens: int
    """Longest prompt plus answer the engine takes."""
    max_batch_total_tokens: int
    """KV-cache tokens the engine has room for."""
    max_batch_size: int
    """Sequences the engine runs at once."""
    reserves_answers: bool = False
    """Whether the engine starts a sequence only with room for its longest answer."""
    adapters: list[str] = []
    """LoRA adapters that jobs may name; a new card is sent when they change."""


class Histogram(Struct, array_like=True):
    """Counts per bucket (not cumulative, the last one is +Inf) beside the sum; bounds are in `common.metrics`."""

    counts: list[int]
    sum: float


class EngineStats(Struct, kw_only=True, omit_defaults=True):
    """Running totals and current values of one engine since its worker started."""

    running: int = 0
    waiting: int = 0
    reserved_tokens: int = 0
    """KV-cache tokens held by running sequences."""
    inference_count: dict[str, int] = {}
    """Model calls by method: `prefill` (a step that computed prompt tokens) or `decode`."""
    inference_success: dict[str, int] = {}
    inference_failure: dict[str, int] = {}
    forward_seconds: dict[str, Histogram] = {}
    inference_seconds: dict[str, Histogram] = {}
    decode_seconds: dict[str, Histogram] = {}
    """Sampling and detokenizing."""
    batch_size: Histogram | None = None
    """Sequences per step."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_asked_tokens: int = 0
    """Tokens of admitted sequences that were looked for in the prefix cache ..."""
    prefix_hit_tokens: int = 0
    """... and those found."""
    preemptions: int = 0
    """Sequences that gave their blocks back and were computed again later."""


# -- worker -> everyone -------------------------------------------------------------------------------------------------


class WorkerRecord(Struct, kw_only=True):
    """What a live worker says of itself with every heartbeat."""

    version: int = WIRE_VERSION
    id: str
    pid: int
    engine_pid: int | None
    host: str
    model: str
    state: WorkerState
    started_at: float
    progress: float = 1.0
    """Of loading the model, 0 to 1."""
    stage: str = ""
    """What is being done while it loads ..."""
    stage_detail: str = ""
    """... and how much of that: `1.2 of 4.9 GB`."""
    running: int = 0
    waiting: int = 0
    card: ModelCard | None = None
    stats: EngineStats = msgspec.field(default_factory=EngineStats)


# -- web process -> web processes --------------------------------------------------------------------------------------


class KeptAnswer(Struct, frozen=True):
    """A whole answer, kept for callers who repeat their request."""

    version: int
    headers: dict[str, str]
    body: bytes


class StoredStream(Struct, frozen=True):
    """What another process must know to go on with a stream whose client comes to it."""

    version: int
    fingerprint: str
    """Of the request."""
    job: str
    seed: int
    """Drawn for the request, if it named none."""
    created: int
    """Unix seconds, as its chunks say."""
    key: str
    """What ids of tool calls are made of."""
    deadline: float = inf
    """Unix seconds by which it must be finished, however often it is gone on with."""


class CancelRequest(Struct, frozen=True, tag="cancel_request"):
    """Cancel the requests of this caller and id; everyone who hears it answers."""

    digest: str
    asker: str
    """Channel for the answers."""
    question: str


class CancelAnswer(Struct, frozen=True, tag="cancel_answer"):
    question: str
    found: int
    """Requests that were cancelled."""
    process: str = ""
    """Who answers."""


class StreamTaken(Struct, frozen=True, tag="stream_taken"):
    """A stream has been taken over: all others let it go."""

    digest: str
    owner: str


WebControl = CancelRequest | CancelAnswer | StreamTaken

encode_msgpack = msgspec.msgpack.Encoder().encode
decode_step_frames = msgspec.msgpack.Decoder(StepFrames).decode
decode_control = msgspec.msgpack.Decoder(Control).decode
decode_kept_answer = msgspec.msgpack.Decoder(KeptAnswer).decode
decode_web_control = msgspec.msgpack.Decoder(WebControl).decode
decode_stored_stream = msgspec.msgpack.Decoder(StoredStream).decode
decode_tokens = msgspec.msgpack.Decoder(Tokens).decode
encode_json = msgspec.json.Encoder().encode
decode_worker_record = msgspec.json.Decoder(WorkerRecord).decode
