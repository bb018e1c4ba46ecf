"""LangChain's models for OpenAI's and Hugging Face's APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, SecretStr

if TYPE_CHECKING:
    from tests.clients.run_checks import Services

PACKAGES = ("langchain-openai", "langchain-huggingface", "langchain-core", "openai", "huggingface-hub")
TEXT = "naïve 🤗 words\u2028and\u0085more"
END = "<|im_end|>"
"""The endpoint's streams have the texts of all tokens, also of those that are not text."""
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class City(BaseModel):
    """A city."""

    name: str
    people: int


class Answer(BaseModel):
    """An answer."""

    answer: Literal["yes", "no"]


def get_weather(city: str) -> str:
    """The weather now."""
    return f"rain in {city}"


def chat(url: str, services: Services, **options: Any) -> Any:
    key = SecretStr(services.key)
    return ChatOpenAI(base_url=f"{url}/v1", api_key=key, model="tgi", timeout=60, max_retries=0, **options)


def endpoint(services: Services, **options: Any) -> Any:
    # Its `huggingfacehub_api_token` goes to Hugging Face's own addresses alone.
    headers = {"headers": {"Authorization": f"Bearer {services.key}"}}
    return HuggingFaceEndpoint(endpoint_url=services.scripted, server_kwargs=headers, **options)


def check_ChatOpenAI(services: Services) -> None:  # noqa: N802 - the class is the feature
    answer = chat(services.scripted, services).invoke(services.said(TEXT))
    assert answer.content == TEXT
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"


def check_ChatOpenAI_stream(services: Services) -> None:  # noqa: N802
    chunks = list(chat(services.scripted, services, stream_usage=True).stream(services.said(TEXT)))
    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0


def check_ChatOpenAI_bind_tools(services: Services) -> None:  # noqa: N802
    model = chat(services.scripted, services)
    for choice in ("auto", "any", "get_weather"):
        bound = model.bind_tools([tool(get_weather)], tool_choice=choice)
        answer = bound.invoke(services.said(CALL))
        (call,) = answer.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"}), choice
        pieces = list(bound.stream(services.said(CALL)))
        gathered = pieces[0]
        for piece in pieces[1:]:
            gathered += piece
        assert gathered.tool_calls[0]["args"] == {"city": "Paris"}, choice
    history = [HumanMessage("?"), answer, ToolMessage(services.script("rain"), tool_call_id=call["id"])]
    assert model.bind_tools([tool(get_weather)]).invoke(history).content == "rain"


def check_ChatOpenAI_with_structured_output(services: Services) -> None:  # noqa: N802
    said = {
        "json_schema": '{"name": "Rome", "people": 3}',
        "json_mode": '{"name": "Rome", "people": 3}',
        "function_calling": '<tool_call>\n{"name": "City", "arguments": {"name": "Rome", "people": 3}}\n</tool_call>',
    }
    for method, text in said.items():
        model = chat(services.scripted, services).with_structured_output(City, method=method)
        assert model.invoke(services.said(text)) == City(name="Rome", people=3), method


async def check_ChatOpenAI_asynchronous(services: Services) -> None:  # noqa: N802
    model = chat(services.scripted, services)
    assert (await model.ainvoke(services.said(TEXT))).content == TEXT
    assert "".join([chunk.text async for chunk in model.astream(services.said(TEXT))]) == TEXT


def check_ChatOpenAI_real_model(services: Services) -> None:  # noqa: N802
    model = chat(services.real, services, temperature=0, max_tokens=12)
    assert "Paris" in model.invoke("What is the capital of France?").content
    said = chat(services.real, services, temperature=0, max_tokens=80).with_structured_output(
        Answer, method="json_schema"
    )
    assert isinstance(said.invoke("Is Paris in France?"), Answer)


def check_OpenAI_completions(services: Services) -> None:  # noqa: N802
    model = OpenAI(base_url=f"{services.scripted}/v1", api_key=SecretStr(services.key), model="tgi", max_retries=0)
    assert model.invoke(services.script(TEXT)) == TEXT
    assert "".join(model.stream(services.script(TEXT))) == TEXT
    answers = model.generate([services.script(TEXT), services.script("two")]).generations
    assert [generations[0].text for generations in answers] == [TEXT, "two"]


def check_HuggingFaceEndpoint(services: Services) -> None:  # noqa: N802
    model = endpoint(services, max_new_tokens=50)
    assert model.invoke(services.script(TEXT)) == TEXT
    assert "".join(model.stream(services.script(TEXT))) == TEXT + END
    stopped = endpoint(services, max_new_tokens=50, stop_sequences=[" three"])
    # The client takes the stop string off the end itself.
    assert stopped.invoke(services.script("one two three four")) == "one two"


async def check_HuggingFaceEndpoint_asynchronous(services: Services) -> None:  # noqa: N802
    model = endpoint(services, max_new_tokens=50)
    assert await model.ainvoke(services.script(TEXT)) == TEXT
    assert "".join([piece async for piece in model.astream(services.script(TEXT))]) == TEXT + END


def hugging_face_chat(services: Services) -> Any:
    return ChatHuggingFace(llm=endpoint(services, max_new_tokens=100), model_id="tgi")


def check_ChatHuggingFace(services: Services) -> None:  # noqa: N802
    model = hugging_face_chat(services)
    assert model.invoke([HumanMessage(services.script(TEXT))]).content == TEXT
    assert "".join(chunk.text for chunk in model.stream([HumanMessage(services.script(TEXT))])) == TEXT


def check_ChatHuggingFace_bind_tools(services: Services) -> None:  # noqa: N802
    bound = hugging_face_chat(services).bind_tools([tool(get_weather)], tool_choice="auto")
    (call,) = bound.invoke([HumanMessage(services.script(CALL))]).tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
