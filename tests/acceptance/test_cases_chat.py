"""Cases from other servers' bug reports, replayed: messages, templates, tokens of a chat.

Cases that need a template of another kind are in `tests/integration/web/test_chat_templates.py`.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from ops.local_service import LocalService
from tests.acceptance.chat import choice, post, refused, user
from tests.acceptance.native import TIMEOUT, script


@pytest.fixture(scope="module")
def url(scripted_service: LocalService) -> str:
    return scripted_service.url


def rendered(url: str, messages: list[dict[str, Any]], **fields: Any) -> str:
    """The prompt that a chat becomes."""
    response = httpx.post(f"{url}/chat_tokenize", json={"messages": messages, **fields})
    assert response.status_code == 200, response.text
    return str(response.json()["templated_text"])


def test_d01_a_developer_is_the_system(url: str) -> None:
    system = rendered(url, [{"role": "system", "content": "Be brief."}, user("Hi")])
    assert rendered(url, [{"role": "developer", "content": "Be brief."}, user("Hi")]) == system
    both = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be brief."}, user("Hi")]
    assert rendered(url, both) == system
    assert choice(url, [{"role": "developer", "content": "x"}, user(script("ok"))])["message"]["content"] == "ok"


@pytest.mark.parametrize("role", ["SYSTEM", "bot", "", None, 5])
def test_d04_unknown_roles(url: str, role: Any) -> None:
    refused(post(url, [{"role": role, "content": "x"}]), "messages.0.role")
    refused(post(url, [user("x"), {"content": "x"}]), "messages.1.role")


def test_d05_content_as_parts(url: str) -> None:
    parts = [{"type": "text", "text": script("o")[:-4]}, {"type": "text", "text": script("o")[-4:]}]
    assert choice(url, [{"role": "user", "content": parts}])["message"]["content"] == "o"
    refused(post(url, [{"role": "user", "content": []}]), "messages.0.content")
    refused(post(url, [{"role": "user", "content": [{"type": "video", "video": {}}]}]), "messages.0.content.0.type")


def called(arguments: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return [user("x"), {"role": "assistant", "content": None, "tool_calls": [call]}, user("y")]


def test_d07_arguments_as_object_or_string(url: str) -> None:
    assert rendered(url, called({"a": 1})) == rendered(url, called('{"a": 1}'))
    assert '"arguments": {"a": 1}' in rendered(url, called('{"a":1}'))
    refused(post(url, called("{not JSON")), "messages.1.tool_calls.0.function.arguments")


@pytest.mark.parametrize("kind", ["http", "file", "data"])
def test_d11_images_are_refused_and_not_fetched(url: str, kind: str) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen()
        door.settimeout(0.2)
        place = {
            "http": f"http://127.0.0.1:{door.getsockname()[1]}/image.png",
            "file": "file:///etc/passwd",
            "data": "data:image/png;base64," + "A" * 1_000_000,
        }[kind]
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": place}}]
        said = refused(post(url, [{"role": "user", "content": parts}]), "messages.0.content.1.type", "text only")
        assert place[:20] not in said
        with pytest.raises(TimeoutError):
            door.accept()


@pytest.mark.parametrize("text", ["Hello there", "🤗 한글 漢字 e\u0301", "<|im_start|>user"])
def test_d13_a_chats_tokens_can_be_counted(real_service: LocalService, text: str) -> None:
    url = real_service.url
    counted = httpx.post(f"{url}/chat_tokenize", json={"messages": [user(text)]}).json()
    prompt, tokens = counted["templated_text"], counted["tokenize_response"]
    # As TGI's, the offsets are those of the bytes.
    assert [prompt.encode()[token["start"] : token["stop"]].decode() for token in tokens] == [
        token["text"] for token in tokens
    ]
    again = httpx.post(f"{url}/tokenize", json={"inputs": prompt}).json()
    assert [token["id"] for token in again] == [token["id"] for token in tokens]
    used = post(url, [user(text)], max_tokens=1).json()["usage"]
    assert used["prompt_tokens"] == len(tokens)
    parameters = {"details": True, "decoder_input_details": True, "max_new_tokens": 1}
    asked = {"inputs": prompt, "parameters": parameters}
    details = httpx.post(f"{url}/generate", json=asked, timeout=TIMEOUT).json()["details"]
    assert [token["id"] for token in details["prefill"]] == [token["id"] for token in tokens]


def test_d14_the_assistants_head_comes_once(url: str) -> None:
    head = "<|im_start|>assistant\n"
    prompt = rendered(url, [user("Hi")])
    assert prompt.endswith(f"<|im_end|>\n{head}")
    assert prompt.count(head) == 1
    # The assistant's own last words are gone on from.
    assert rendered(url, [user("Count."), {"role": "assistant", "content": "1, 2,"}]).endswith(f"{head}1, 2,")


@pytest.mark.parametrize(
    "fields", [{"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}]
)
def test_c41_templates_of_clients_are_refused(url: str, fields: dict[str, Any]) -> None:
    nested = "{% for a in range(99999) %}" * 5 + "{% endfor %}" * 5
    fields = json.loads(json.dumps(fields).replace("{{ 1 }}", nested))
    said = refused(post(url, [user("x")], **fields))
    assert "chat_template" in said
