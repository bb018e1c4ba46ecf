"""LlamaIndex's class for servers that speak OpenAI's API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

if TYPE_CHECKING:
    from tests.clients.run_checks import Services

PACKAGES = ("llama-index-llms-openai-like", "llama-index-core", "openai")
TEXT = "naïve 🤗 words\u2028and\u0085more"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class City(BaseModel):
    """A city."""

    name: str
    people: int


def get_weather(city: str) -> str:
    """The weather now."""
    return f"rain in {city}"


def of(services: Services, url: str, **options: Any) -> Any:
    return OpenAILike(
        model="tgi",
        api_base=f"{url}/v1",
        api_key=services.key,
        context_window=2048,
        max_tokens=100,
        timeout=60,
        max_retries=0,
        **{"is_chat_model": True, "is_function_calling_model": True, **options},
    )


def said(services: Services, text: str) -> list[Any]:
    return [ChatMessage(role="user", content=services.script(text))]


def check_chat(services: Services) -> None:
    assert of(services, services.scripted).chat(said(services, TEXT)).message.content == TEXT


def check_chat_stream(services: Services) -> None:
    pieces = list(of(services, services.scripted).stream_chat(said(services, TEXT)))
    assert "".join(piece.delta or "" for piece in pieces) == TEXT


def check_completions(services: Services) -> None:
    model = of(services, services.scripted, is_chat_model=False)
    assert model.complete(services.script(TEXT)).text == TEXT
    assert "".join(piece.delta or "" for piece in model.stream_complete(services.script(TEXT))) == TEXT


def check_chat_with_tools(services: Services) -> None:
    model = of(services, services.scripted)
    tools = [FunctionTool.from_defaults(get_weather)]
    for required in (False, True):
        answer = model.chat_with_tools(tools, chat_history=said(services, CALL), tool_required=required)
        (call,) = model.get_tool_calls_from_response(answer)
        assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"})
    *_, last = model.stream_chat_with_tools(tools, chat_history=said(services, CALL))
    (call,) = model.get_tool_calls_from_response(last)
    assert call.tool_kwargs == {"city": "Paris"}


def check_structured_output(services: Services) -> None:
    call = '<tool_call>\n{"name": "City", "arguments": {"name": "Rome", "people": 3}}\n</tool_call>'
    answer = of(services, services.scripted).as_structured_llm(City).chat(said(services, call))
    assert answer.raw == City(name="Rome", people=3)


async def check_asynchronous(services: Services) -> None:
    model = of(services, services.scripted)
    assert (await model.achat(said(services, TEXT))).message.content == TEXT
    stream = await model.astream_chat(said(services, TEXT))
    assert "".join([piece.delta or "" async for piece in stream]) == TEXT


def check_real_model(services: Services) -> None:
    assert "Paris" in of(services, services.real, temperature=0).complete("What is the capital of France?").text
