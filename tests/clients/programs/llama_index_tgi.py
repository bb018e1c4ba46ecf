"""LlamaIndex's class for TGI.

It stands on a nightly build of TGI's client (`tgi`). That one's `chat(..., stream=True)` reads the closing `[DONE]` as JSON and
fails, on TGI too: `stream_chat` is not tried.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.text_generation_inference import TextGenerationInference

if TYPE_CHECKING:
    from tests.clients.run_checks import Services

PACKAGES = ("llama-index-llms-text-generation-inference", "llama-index-core", "tgi")
TEXT = "naïve 🤗 words\u2028and\u0085more"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def get_weather(city: str) -> str:
    """The weather now."""
    return f"rain in {city}"


def of(services: Services, url: str) -> Any:
    return TextGenerationInference(model_url=url, token=services.key, timeout=60, max_tokens=100)


def said(services: Services, text: str) -> list[Any]:
    return [ChatMessage(role="user", content=services.script(text))]


def check_reads_info(services: Services) -> None:
    model = of(services, services.scripted)
    assert model.metadata.model_name == "scripted"
    assert model.metadata.is_function_calling_model is True
    assert model.metadata.context_window > 100


def check_chat(services: Services) -> None:
    assert of(services, services.scripted).chat(said(services, TEXT)).message.content == TEXT


def check_complete(services: Services) -> None:
    assert of(services, services.scripted).complete(services.script(TEXT)).text == TEXT


def check_chat_with_tools(services: Services) -> None:
    model = of(services, services.scripted)
    answer = model.chat_with_tools([FunctionTool.from_defaults(get_weather)], chat_history=said(services, CALL))
    (call,) = answer.message.additional_kwargs["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def check_asynchronous(services: Services) -> None:
    model = of(services, services.scripted)
    assert asyncio.run(model.achat(said(services, TEXT))).message.content == TEXT


def check_real_model(services: Services) -> None:
    assert "Paris" in of(services, services.real).complete("What is the capital of France?").text
