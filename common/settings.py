"""Every setting of the service, in one class.

Settings that TGI has keep TGI's variable names (`MODEL_ID`, `MAX_TOTAL_TOKENS`, ...); ours start with `TGQ_`. Values come
from keyword arguments (command-line flags), then the environment, then the defaults here.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, PrivateAttr, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from common.redis_url import RedisAddress, with_password

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SCRIPTED_MODEL = "scripted"
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"

Quantization = Literal[
    "int8",
    "bitsandbytes",
    "bitsandbytes-nf4",
    "bitsandbytes-fp4",
    "gptq",
    "awq",
    "fp8",
    "compressed-tensors",
    "eetq",
    "torchao",
]


def _ours(name: str) -> AliasChoices:
    return AliasChoices(f"TGQ_{name.upper()}")


class Settings(BaseSettings):
    """The service's settings. An environment variable that is set but empty counts as not set."""

    model_config = SettingsConfigDict(env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True)

    # -- the model
    model_id: str = DEFAULT_MODEL
    """A hub id, a local folder, or `scripted` (a model without weights, for tests)."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """Type of the weights. Default: the model's own on CUDA, float32 on CPU."""
    quantize: Quantization | None = None
    """Precision of the weights: `int8` on CPU; on CUDA a kind that transformers loads. Default: as they are stored."""
    speculate: int = Field(0, ge=0, le=16)
    """Tokens proposed from earlier text per sequence and step; answers stay the same. Helps when few sequences run."""
    lora_adapters: Annotated[list[str], NoDecode] = []
    """LoRA adapters, separated by commas: hub ids or `name=folder`, each with `@revision` if wanted."""
    lora_folder: Path | None = Field(None, validation_alias=_ours("lora_folder"))
    """Folder with one LoRA adapter in each subfolder, followed while serving."""
    accept_any_model: bool = Field(False, validation_alias=_ours("accept_any_model"))
    """Requests that name a model nobody serves go to the default one, instead of 404."""
    served_model_name: str | None = Field(
        None, min_length=1, max_length=256, validation_alias=_ours("served_model_name")
    )
    """Name that requests, answers and the queue know the model by, the same for its workers. Default: `model_id`."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    huggingface_hub_cache: Path | None = None
    """Where hub models are kept. Default: the hub library's own cache."""

    # -- limits of one request
    max_input_tokens: int | None = Field(
        None, ge=1, validation_alias=AliasChoices("MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH")
    )
    """Longest prompt. Default: one less than `max_total_tokens`."""
    max_total_tokens: int | None = Field(None, ge=2)
    """Longest prompt plus answer. Default: the model's context, at most 4096."""
    default_max_new_tokens: int = Field(100, ge=1, validation_alias=_ours("default_max_new_tokens"))
    """`max_new_tokens` when a native request names none (100 up to TGI 2.4)."""
    max_best_of: int = Field(2, ge=1)
    """Largest `best_of` of a request."""
    max_stop_sequences: int = Field(4, ge=0)
    """Most stop strings of a request."""
    max_top_n_tokens: int = Field(5, ge=0)
    """Largest `top_n_tokens` of a request."""
    disable_grammar_support: bool = False
    """Refuse requests with a `grammar`."""
    grammar_timeout: float = Field(5.0, gt=0, validation_alias=_ours("grammar_timeout"))
    """Seconds a grammar may take to compile; those that take longer are refused."""
    max_client_batch_size: int = Field(32, ge=1)
    """Most prompts in one request; TGI's default of 4 is below what clients of OpenAI's API send by default."""
    payload_limit: int = Field(2_000_000, ge=1)
    """Bytes of a request body at most."""
    validation_workers: int = Field(2, ge=1)
    """Threads that validate and tokenize, per web process."""
    max_choices: int = Field(16, ge=1, le=128, validation_alias=_ours("max_choices"))
    """Largest `n` or `best_of` of a request on `/v1`."""
    max_top_logprobs: int = Field(20, ge=0, validation_alias=_ours("max_top_logprobs"))
    """Most alternatives for each token on `/v1` (`top_logprobs`, `logprobs`)."""

    # -- watermark
    watermark_gamma: float = Field(0.5, gt=0, lt=1)
    """Share of the vocabulary that a watermark favours at each token."""
    watermark_delta: float = Field(2.0, ge=0)
    """What a watermark adds to the scores of the tokens it favours."""
    watermark_key: int = Field(15_485_863, ge=0, lt=2**64, validation_alias=_ours("watermark_key"))
    """Chooses the tokens a watermark favours; whoever knows it can detect the watermark. The default is TGI's."""

    # -- admission
    max_concurrent_requests: int = Field(128, ge=1)
    """Sequences admitted at once over all web processes; above it requests are refused with 429."""
    lease_seconds: float = Field(5.0, gt=0, validation_alias=_ours("lease_seconds"))
    """Permits of a web process that stops renewing its lease are free after this time."""

    # -- batching
    max_batch_size: int | None = Field(None, ge=1)
    """Sequences an engine runs at once. Default: 64 on CPU, 256 on CUDA."""
    max_batch_total_tokens: int | None = Field(None, ge=1)
    """KV-cache tokens of an engine. Default: from the memory there is."""
    max_batch_prefill_tokens: int | None = Field(None, ge=1)
    """Prompt tokens computed in one step at most. Default: 128 on CPU, 4096 on CUDA."""
    cuda_graphs: Annotated[list[Annotated[int, Field(ge=0)]], NoDecode] = [1, 2, 4, 8, 16, 32, 64, 128]
    """Steps of how many sequences are captured as CUDA graphs, separated by commas; 0 captures none."""
    prefix_caching: bool = True
    """Keep what was computed and begin new sequences with what is known of them."""
    waiting_served_ratio: float = 0.3
    """Reported by `/info`; has no effect, as in TGI 3: prefill is chunked and mixed with decode."""
    max_waiting_tokens: int = 20
    """Reported by `/info`; has no effect, as in TGI 3."""
    batch_reserve: int = Field(2, ge=0, validation_alias=_ours("batch_reserve"))
    """Slots of a worker that `batch` jobs may not take."""
    batch_overdue_after: float = Field(60.0, ge=0, validation_alias=_ours("batch_overdue_after"))
    """Seconds after which a `batch` job need not wait any longer until no interactive one does."""
    batch_overdue_share: float = Field(0.1, ge=0, le=1, validation_alias=_ours("batch_overdue_share"))
    """Tokens of such jobs that are taken for each token of interactive ones."""

    # -- web
    hostname: str = "0.0.0.0"
    """IP address to listen on; a container's name, which HOSTNAME holds there, counts as not set."""
    port: int = Field(3000, ge=0, le=65535)
    """TCP port to listen on; `tgq serve` picks a free one for 0."""
    web_concurrency: int = Field(1, ge=1)
    """Web processes."""
    cors_allow_origin: Annotated[list[str], NoDecode] = []
    """Origins browsers may call from, separated by commas; none means any."""
    api_key: SecretStr | None = None
    """When set, what is protected wants `Authorization: Bearer <key>`."""
    api_keys_file: Path | None = Field(None, validation_alias=_ours("api_keys_file"))
    """TOML or JSON file of API keys with names and limits, read again when it changes."""
    protect: Literal["api", "all"] = Field("api", validation_alias=_ours("protect"))
    """What wants a key when there are keys: generation, tokenizing and `/v1`, or everything but health checks."""
    idempotency_seconds: float = Field(600.0, gt=0, validation_alias=_ours("idempotency_seconds"))
    """How long the answer to a call with an `Idempotency-Key` is kept for those who repeat it."""
    idempotency_grace: float = Field(10.0, ge=0, validation_alias=_ours("idempotency_grace"))
    """Seconds such a call runs on when its client has left, so that a retry finds it."""
    resume_seconds: float = Field(120.0, gt=0, validation_alias=_ours("resume_seconds"))
    """Seconds a stream asked for with `x-tgq-resume` runs on without its client, and may be resumed."""
    error_format: Literal["openai", "tgi"] = Field("openai", validation_alias=_ours("error_format"))
    """Form of errors on `/v1` routes: OpenAI's nested object, or TGI's flat one."""
    keepalive_seconds: float = Field(15.0, ge=0, validation_alias=_ours("keepalive_seconds"))
    """A comment is sent on a stream that was silent this long; 0 sends none."""
    graceful_termination_timeout: float = Field(90.0, ge=0)
    """Seconds running requests have to end once the service is told to stop."""
    drain_notice: float = Field(0.0, ge=0, validation_alias=_ours("drain_notice"))
    """Seconds of `graceful_termination_timeout` that a web node told to stop goes on answering, with 503, whether requests run
    or not: what load balancers need to see it go."""

    playground: bool = Field(True, validation_alias=_ours("playground"))
    """Serve `/playground`, a page to try the models on."""

    # -- time limits of a request
    queue_timeout: float = Field(300.0, gt=0, validation_alias=_ours("queue_timeout"))
    """Seconds a request may wait until a worker accepts it."""
    stall_timeout: float = Field(60.0, gt=0, validation_alias=_ours("stall_timeout"))
    """Seconds an accepted request may be silent before it ends with an error."""
    request_timeout: float = Field(3600.0, gt=0, validation_alias=_ours("request_timeout"))
    """Seconds a request may take in all; callers ask for less with `x-request-timeout`."""

    # -- Redis
    redis_url: str | None = Field(None, validation_alias=AliasChoices("REDIS_URL", "TGQ_REDIS_URL"))
    """Redis or Valkey. `tgq serve` starts an embedded server when this is not set."""
    redis_timeout: float = Field(2.0, gt=0, validation_alias=_ours("redis_timeout"))
    """Seconds any single Redis command may take before it counts as failed."""
    redis_connect_timeout: float = Field(1.0, gt=0, validation_alias=_ours("redis_connect_timeout"))
    """Seconds connecting to Redis may take."""
    key_prefix: str = Field("tgq", pattern=r"^[A-Za-z0-9_-]+$", validation_alias=_ours("key_prefix"))
    """Start of every Redis name; services with different prefixes share one Redis without meeting."""
    redis_data: Path | None = Field(None, validation_alias=_ours("redis_data"))
    """Folder in which the embedded server of `tgq serve` keeps its data over restarts. Default: in memory only."""
    queue_limit: int = Field(10_000, ge=1, validation_alias=_ours("queue_limit"))
    """Jobs one queue may hold; above it requests are refused with 429."""
    redis_password_file: Path | None = Field(None, validation_alias=_ours("redis_password_file"))
    """File with the password for `redis_url`, which has none then: a secret of Docker's or Kubernetes'. Read at the start."""

    # -- workers
    workers: int = Field(1, ge=1, validation_alias=_ours("workers"))
    """Workers that `tgq serve` starts."""
    device: Literal["auto", "cpu", "cuda"] = Field("auto", validation_alias=_ours("device"))
    """Where the engine computes; `auto` takes CUDA when there is a GPU."""
    cuda_memory_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the GPU's memory the engine may use."""
    engine_threads: int | None = Field(None, ge=1, validation_alias=_ours("engine_threads"))
    """Threads of the CPU engine. Default: the cores divided by the workers, less one core for the rest."""
    overlap: bool = Field(True, validation_alias=_ours("overlap"))
    """On CUDA launch the next step before the tokens of the last are handed on; answers stay the same."""
    strict: bool = Field(True, validation_alias=_ours("strict"))
    """On CPU a sequence's results are the same bits whatever it is computed with; without this it may be faster."""
    heartbeat_seconds: float = Field(1.0, gt=0, validation_alias=_ours("heartbeat_seconds"))
    """Seconds between two heartbeats of a worker."""
    worker_dead_after: float = Field(2.5, gt=0, validation_alias=_ours("worker_dead_after"))
    """Seconds without a heartbeat after which a worker counts as lost: others take over its jobs."""
    max_attempts: int = Field(3, ge=1, validation_alias=_ours("max_attempts"))
    """Workers that may be lost with a job, one after the other without a new token, before it is given up as poisonous."""
    on_sigterm: Literal["auto", "hand_over", "finish"] = Field("auto", validation_alias=_ours("on_sigterm"))
    """What a worker told to stop does with running requests: `hand_over` to other workers at once, `finish` them within
    `graceful_termination_timeout`, or `auto`: hand over once another worker of the model takes requests."""
    engine_stall_timeout: float | None = Field(None, gt=0, validation_alias=_ours("engine_stall_timeout"))
    """Seconds an engine with running requests may go without finishing a step before it is killed and restarted. Default:
    60 on CPU, 20 on CUDA."""
    engine_frozen_timeout: float = Field(3.0, gt=0, validation_alias=_ours("engine_frozen_timeout"))
    """Seconds an engine process may show no sign of life at all before it is killed and restarted."""
    engine_target: str = Field("workers.engine.main:run", validation_alias=_ours("engine_target"))
    """Function the engine process runs, as `module:function`; benchmarks and tests put their own here."""
    progress: bool = Field(True, validation_alias=_ours("progress"))
    """Show how far the model has been fetched and loaded: a bar on a terminal, log lines elsewhere."""
    cache_dir: Path = Field(
        default_factory=lambda: Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tgq",
        validation_alias=_ours("cache_dir"),
    )
    """Where the converted default model is kept."""

    # -- batches
    batch_storage: str = Field(
        default_factory=lambda: str(
            Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "tgq" / "batches"
        ),
        validation_alias=_ours("batch_storage"),
    )
    """Where the files of `/v1/files` and batches' results are: a folder that web nodes and batch runners share, or a URL that
    fsspec knows, such as `s3://bucket/folder` (with s3fs installed)."""
    max_file_bytes: int = Field(200 * 2**20, ge=1, validation_alias=_ours("max_file_bytes"))
    """Largest file of `/v1/files`."""
    file_retention: float = Field(30 * 86400.0, ge=60, validation_alias=_ours("file_retention"))
    """Seconds after which a file goes for which nothing else was asked."""
    batch_retention: float = Field(30 * 86400.0, ge=60, validation_alias=_ours("batch_retention"))
    """Seconds that a batch can be asked for after its end."""
    batch_max_requests: int = Field(50_000, ge=1, validation_alias=_ours("batch_max_requests"))
    """Most requests of one batch."""
    batch_completion_windows: Annotated[list[Annotated[str, Field(pattern=r"^[1-9]\d{0,5}[smhd]$")]], NoDecode] = Field(
        ["24h"], min_length=1, validation_alias=_ours("batch_completion_windows")
    )
    """What a batch's `completion_window` may be, separated by commas: numbers with `s`, `m`, `h` or `d`."""
    batch_workers: int = Field(1, ge=0, validation_alias=_ours("batch_workers"))
    """Batch runners that `tgq serve` starts."""
    batch_concurrency: int = Field(8, ge=1, validation_alias=_ours("batch_concurrency"))
    """Batches that one runner works on at once; they take turns."""
    batch_window: int = Field(1024, ge=1, validation_alias=_ours("batch_window"))
    """Sequences of one model that a runner has under way at most; else twice as many as the model's workers run at once."""
    batch_lease_seconds: float = Field(10.0, ge=0.5, validation_alias=_ours("batch_lease_seconds"))
    """Seconds without a sign of life from its runner after which another one takes over a batch."""
    batch_webhook_url: str | None = Field(None, pattern=r"^https?://", validation_alias=_ours("batch_webhook_url"))
    """Where batches that have ended are told with a POST, signed as Standard Webhooks has it."""
    batch_webhook_secret: SecretStr | None = Field(None, min_length=1, validation_alias=_ours("batch_webhook_secret"))
    """What they are signed with: `whsec_` and base64, or the very characters."""

    # -- logs
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages that are logged."""
    json_output: bool = False
    """Log JSON even on a terminal."""

    # -- traces
    otlp_endpoint: str | None = Field(
        None, validation_alias=AliasChoices("OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    )
    """Collector that traces are sent to, by OTLP over HTTP (`http://host:4318`); none are made without one."""
    otlp_service_name: str | None = Field(
        None, min_length=1, validation_alias=AliasChoices("OTLP_SERVICE_NAME", "OTEL_SERVICE_NAME")
    )
    """Name of the service in traces. Default: by what a process is, `tgq-web`, `tgq-worker` or `tgq-batch-worker`."""

    _redis_password: str = PrivateAttr("")

    @field_validator("hostname", mode="before")
    @classmethod
    def _ignore_container_names(cls, value: Any) -> Any:
        # Docker and Kubernetes set HOSTNAME to the container's name, which is no address to listen on.
        if value == "localhost":
            return value
        try:
            ipaddress.ip_address(str(value))
        except ValueError:
            return "0.0.0.0"
        return value

    @field_validator("redis_url")
    @classmethod
    def _can_be_dialled(cls, value: str | None) -> str | None:
        if value is not None:
            RedisAddress.parse(value)
        return value

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            _ = parts.port  # raises ValueError
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("must be a URL with `http://` or `https://`, such as http://collector:4318")
        return value

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("cors_allow_origin", "lora_adapters", "cuda_graphs", "batch_completion_windows", mode="before")
    @classmethod
    def _split_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [entry.strip() for entry in value.split(",") if entry.strip()]
        return value

    @model_validator(mode="after")
    def _limits_fit(self) -> Settings:
        if self.max_input_tokens and self.max_total_tokens and self.max_input_tokens >= self.max_total_tokens:
            raise ValueError(
                f"MAX_INPUT_TOKENS ({self.max_input_tokens}) must be less than MAX_TOTAL_TOKENS ({self.max_total_tokens})"
            )
        if self.worker_dead_after <= self.heartbeat_seconds:
            raise ValueError(
                f"TGQ_WORKER_DEAD_AFTER ({self.worker_dead_after:g}) must be more than TGQ_HEARTBEAT_SECONDS "
                f"({self.heartbeat_seconds:g})"
            )
        if self.batch_webhook_url is not None and self.batch_webhook_secret is None:
            raise ValueError("TGQ_BATCH_WEBHOOK_URL needs TGQ_BATCH_WEBHOOK_SECRET, which its calls are signed with")
        return self

    @model_validator(mode="after")
    def _read_redis_password(self) -> Settings:
        if self.redis_password_file is None:
            return self
        if self.redis_url is None or RedisAddress.parse(self.redis_url).password is not None:
            raise ValueError("TGQ_REDIS_PASSWORD_FILE needs a REDIS_URL without a password")
        try:
            self._redis_password = self.redis_password_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"TGQ_REDIS_PASSWORD_FILE cannot be read: {type(error).__name__}") from None
        if not self._redis_password:
            raise ValueError("TGQ_REDIS_PASSWORD_FILE has no password in it")
        return self

    @classmethod
    def of(cls, **values: Any) -> Settings:
        """Settings with some fields given by name (`Settings.of(workers=2)`), the rest from the environment.

        Names are not accepted by the constructor: pydantic-settings would then also read `WORKERS` or `DEVICE` from the
        environment, where other programs put their own.
        """
        aliased = {name for name, field in cls.model_fields.items() if field.validation_alias is not None}
        return cls(**{cls.variable(name) if name in aliased else name: value for name, value in values.items()})

    @classmethod
    def variable(cls, name: str) -> str:
        """The environment variable of a field, for example `TGQ_WORKERS` of `workers`."""
        alias = cls.model_fields[name].validation_alias
        if isinstance(alias, AliasChoices):
            return str(alias.choices[0])
        return name.upper() if alias is None else str(alias)

    @property
    def model_name(self) -> str:
        """What requests call the model."""
        return self.served_model_name or self.model_id

    @property
    def broker_url(self) -> str:
        """The Redis to use when none is embedded, with its password."""
        url = self.redis_url or DEFAULT_REDIS_URL
        return with_password(url, self._redis_password) if self._redis_password else url
