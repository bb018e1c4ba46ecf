"""Every flag and variable of TGI's launcher, from 1.4 to 3.3, and what becomes of it here.

Pure data: the command, its help and the documents are made from it or checked against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fate = Literal["honoured", "ignored", "refused"]
"""`ignored`: its absence harms nobody, a warning names it. `refused`: answers or capacity would be others, so nothing starts."""


@dataclass(frozen=True)
class TgiFlag:
    """One flag of TGI's launcher, or a variable without a flag (`name` is empty)."""

    name: str
    """With its dashes: `--model-id`."""
    variable: str
    """Environment variable; empty where there is none."""
    fate: Fate
    words: str
    """One line: what it does here, what stands in for it, or why it is refused."""
    group: str = ""
    """Heading in the help."""
    setting: str = ""
    """Field of `common.settings.Settings` it goes to; empty where something else takes it."""
    short: str = ""
    switch: bool = False
    """Given without a value."""
    repeats: bool = False
    """May be given more than once."""
    harmless: tuple[str, ...] = ()
    """Values of a refused one that ask for nothing."""


def _set(
    name: str, words: str, *, setting: str = "", short: str = "", switch: bool = False, repeats: bool = False
) -> TgiFlag:
    return TgiFlag(
        name,
        _variable(name),
        "honoured",
        words,
        setting=setting or name[2:].replace("-", "_"),
        short=short,
        switch=switch,
        repeats=repeats,
    )


def _ignore(name: str, words: str, *, switch: bool = False) -> TgiFlag:
    return TgiFlag(name, _variable(name), "ignored", words, switch=switch)


def _refuse(name: str, words: str, *, harmless: tuple[str, ...] = (), switch: bool = False) -> TgiFlag:
    return TgiFlag(name, _variable(name), "refused", words, harmless=harmless, switch=switch)


def _variable(name: str) -> str:
    return name[2:].upper().replace("-", "_")


_GROUPS: dict[str, tuple[TgiFlag, ...]] = {
    "Model": (
        _set("--model-id", "hub id or local folder; the default is another one: SmolLM2-135M-Instruct"),
        _set("--revision", "commit, branch or tag of a hub model"),
        _set("--quantize", "kinds without kernels here are refused: exl2, marlin"),
        _set("--speculate", "tokens proposed from earlier text; a model's Medusa heads are not used"),
        _set("--dtype", "float16 or bfloat16, and float32"),
        _refuse("--kv-cache-dtype", "the KV cache has the type of the model: one of 8 bits changes answers"),
        _set("--trust-remote-code", "run Python code that comes with the model", switch=True),
        _set("--lora-adapters", "`id`, `name=folder` or `id@revision`, separated by commas"),
        _set("--huggingface-hub-cache", "folder of hub models"),
        _refuse("--weights-cache-override", "give --model-id the folder that holds the weights, with its config.json"),
        _refuse("--rope-scaling", "put `rope_scaling` into the model's config.json", harmless=("linear",)),
        _refuse("--rope-factor", "put `rope_scaling` into the model's config.json", harmless=("1", "1.0")),
        _refuse("--tokenizer-config-path", "put the chat template into the model's folder: chat_template.jinja"),
    ),
    "Limits of a request": (
        _set("--max-concurrent-requests", "counted over all web nodes; more are refused with 429"),
        _set("--max-best-of", "largest `best_of`"),
        _set("--max-stop-sequences", "most stop strings"),
        _set("--max-top-n-tokens", "largest `top_n_tokens`"),
        _set("--max-input-tokens", "longest prompt"),
        _set("--max-input-length", "old name of --max-input-tokens; only one of them", setting="max_input_tokens"),
        _set("--max-total-tokens", "longest prompt plus answer"),
        _set("--max-client-batch-size", "most prompts of a request; 32 where it is not set, TGI's is 4"),
        _set("--payload-limit", "largest body in bytes"),
        _set("--disable-grammar-support", "refuse requests with a grammar", switch=True),
        _ignore("--enable-prefill-logprobs", "requests that ask for them always get them", switch=True),
        _set("--validation-workers", "threads that check and tokenize, for each web process"),
    ),
    "Batching": (
        _set("--max-batch-size", "sequences an engine runs at once"),
        _set("--max-batch-total-tokens", "tokens in an engine's KV cache"),
        _set("--max-batch-prefill-tokens", "prompt tokens computed in one step"),
        _set("--waiting-served-ratio", "`/info` tells it; without effect, as in TGI 3: prefill is chunked"),
        _set("--max-waiting-tokens", "`/info` tells it; without effect, as in TGI 3: prefill is chunked"),
        _set("--cuda-graphs", "sizes of steps that are captured, separated by commas; 0 for none"),
    ),
    "Hardware": (
        _refuse("--sharded", "a model runs on one GPU; several GPUs take a `tgq worker` each", harmless=("false",)),
        _refuse("--num-shard", "a model runs on one GPU; several GPUs take a `tgq worker` each", harmless=("1",)),
        _ignore("--shard-uds-path", "there are no shards"),
        _ignore("--master-addr", "there are no shards"),
        _ignore("--master-port", "there are no shards"),
        _set("--cuda-memory-fraction", "share of the GPU's memory"),
        _ignore("--disable-custom-kernels", "there are none to disable", switch=True),
    ),
    "Server": (
        _set("--hostname", "address to listen on; a container's name counts as not set"),
        _set("--port", "port to listen on; 3000, in TGI's images 80", short="-p"),
        _ignore("--prometheus-port", "`/metrics` is on the port of everything else"),
        _set("--cors-allow-origin", "origin that browsers may call from; none for all", repeats=True),
        _set("--api-key", "key that callers send as `Authorization: Bearer`"),
        _set("--graceful-termination-timeout", "seconds for running requests at the end", short="-g"),
        _refuse("--ngrok", "no tunnel is opened; put a proxy in front (ops/nginx)", switch=True),
        _ignore("--ngrok-authtoken", "no tunnel is opened"),
        _ignore("--ngrok-edge", "no tunnel is opened"),
    ),
    "Watermark": (
        _set("--watermark-gamma", "share of the vocabulary that is favoured"),
        _set("--watermark-delta", "what is added to its scores"),
    ),
    "Logs and telemetry": (
        _set("--json-output", "logs as JSON on a terminal, too; elsewhere they always are", switch=True),
        _set("--otlp-endpoint", "where traces go, over HTTP: 4318 is meant where 4317 is said"),
        _set("--otlp-service-name", "what traces call the service"),
        _ignore("--usage-stats", "nothing is ever sent anywhere"),
        _ignore("--disable-usage-stats", "nothing is ever sent anywhere", switch=True),
        _ignore("--disable-crash-reports", "nothing is ever sent anywhere", switch=True),
        TgiFlag("--env", "", "honoured", "print the settings and go on", short="-e", switch=True),
    ),
}

FLAGS: tuple[TgiFlag, ...] = tuple(
    TgiFlag(**{**vars(flag), "group": group}) for group, flags in _GROUPS.items() for flag in flags
)
"""Every flag, in the order of the help."""

VARIABLES: tuple[TgiFlag, ...] = (
    TgiFlag("", "HF_TOKEN", "honoured", "token for gated and private models"),
    TgiFlag("", "HUGGING_FACE_HUB_TOKEN", "honoured", "old name of HF_TOKEN"),
    TgiFlag("", "HF_API_TOKEN", "honoured", "old name of HF_TOKEN"),
    TgiFlag("", "HF_HUB_OFFLINE", "honoured", "1: models come from the cache alone"),
    TgiFlag("", "CUDA_VISIBLE_DEVICES", "honoured", "GPUs that are seen; a worker takes the first"),
    TgiFlag(
        "", "LOG_LEVEL", "honoured", "one level for everything: debug, info, warning or error", setting="log_level"
    ),
    TgiFlag("", "PREFIX_CACHING", "honoured", "keep what was computed for new prompts", setting="prefix_caching"),
    TgiFlag("", "USE_PREFIX_CACHING", "honoured", "old name of PREFIX_CACHING", setting="prefix_caching"),
    TgiFlag("", "PREFILL_CHUNKING", "ignored", "prefill is always chunked"),
    TgiFlag("", "ATTENTION", "ignored", "the kernel is chosen by what the GPU can do"),
    TgiFlag("", "USE_FLASH_ATTENTION", "ignored", "the kernel is chosen by what the GPU can do"),
    TgiFlag("", "TGI_WIGGLE_ROOM", "ignored", "the memory is measured; see --cuda-memory-fraction"),
    TgiFlag("", "HF_HUB_ENABLE_HF_TRANSFER", "ignored", "the hub library chooses how it downloads"),
    TgiFlag("", "HF_HUB_USER_AGENT_ORIGIN", "ignored", "nothing is told about this service"),
    TgiFlag("", "MESSAGES_API_ENABLED", "ignored", "`/invocations` takes every kind of body"),
    TgiFlag("", "MAX_IMAGE_FETCH_SIZE", "ignored", "images are refused, whatever their size"),
    TgiFlag("", "COMPUTE_TYPE", "ignored", "`x-compute-type` tells the device: cpu or cuda"),
    TgiFlag("", "AIP_HTTP_PORT", "ignored", "there is no `/vertex`; PORT says where to listen"),
    TgiFlag("", "AIP_PREDICT_ROUTE", "ignored", "there is no `/vertex`"),
    TgiFlag("", "AIP_HEALTH_ROUTE", "ignored", "the route is `/health`"),
)
"""Variables that TGI reads and that have no flag."""
