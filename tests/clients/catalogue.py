"""The clients that are tried, each family with what it installs and the program that holds its checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Clients that share an environment."""

    name: str
    requirements: tuple[str, ...]
    """As the registry has them today: newest versions, nothing pinned."""
    program: str
    """A file of `programs`."""
    shares: bool = False
    """Whether the environment also sees the packages of the service's own, for clients that want torch: it is large."""
    seconds: int = 300
    """The program may take."""

    @property
    def javascript(self) -> bool:
        return self.program.endswith(".mjs")


FAMILIES = (
    Family("openai", ("openai",), "openai.py"),
    Family("huggingface-hub", ("huggingface_hub",), "huggingface_hub.py"),
    Family("text-generation", ("text-generation",), "text_generation.py"),
    Family("langchain", ("langchain-openai", "langchain-huggingface"), "langchain.py"),
    Family("llama-index-tgi", ("llama-index-llms-text-generation-inference",), "llama_index_tgi.py"),
    Family("llama-index-openai-like", ("llama-index-llms-openai-like",), "llama_index_openai_like.py"),
    Family("lm-eval", ("lm-eval[api]",), "lm_eval.py", shares=True, seconds=600),
    Family("guidellm", ("guidellm",), "guidellm.py", shares=True, seconds=600),
    Family(
        "javascript", ("openai", "@huggingface/inference", "ai", "@ai-sdk/openai-compatible", "zod"), "javascript.mjs"
    ),
)

NOT_TRIED = {"litellm": "releases of it have carried malware; its requests are in test_clients_recorded.py"}
