"""The message we build by hand is the one Celery would build."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from kombu.transport.virtual import Message

from common.celery_app import broker, make_app
from common.celery_message import TASK_NAME, celery_message, job_of
from common.grammar import Grammar
from common.parameters import GenerationParameters, Watermark
from common.settings import Settings
from common.wire import Job

QUEUE = "tgq:queue:m:interactive"


def job(**fields: Any) -> Job:
    parameters = GenerationParameters(max_new_tokens=7, seed=2**64 - 1, stop=['"quoted"\u2028', "é"])
    fields = {"prompt_ids": list(range(40)), "reply_to": "tgq:reply:here", "submitted_at": 12.5, **fields}
    return Job(id="request-1", model="m", parameters=parameters, **fields)


def decoded(message: bytes) -> Any:
    return json.loads(message)


@pytest.mark.parametrize("deadline", [None, 1_800_000_000.25])
@pytest.mark.parametrize("reply_to", [None, "tgq:reply:here"])
def test_equals_what_celery_builds(deadline: float | None, reply_to: str | None) -> None:
    ours = job(deadline=deadline, reply_to=reply_to)
    app = make_app(Settings.of())
    theirs = app.amqp.as_task_v2(
        ours.id,
        TASK_NAME,
        args=[msgspec.to_builtins(ours)],
        reply_to=reply_to,
        expires=None if deadline is None else datetime.fromtimestamp(deadline, UTC),
        ignore_result=reply_to is not None,
        argsrepr="",
        kwargsrepr="",
    )
    message = decoded(celery_message(ours, QUEUE))
    headers = message["headers"]
    assert headers.pop("cost") == 47
    assert headers.pop("attempt") == 1
    assert (headers.pop("prompt"), headers.pop("sequences")) == (40, 1)
    assert (headers.pop("submitted"), headers.pop("deadline")) == (12.5, deadline)
    assert (headers.pop("tenant"), headers.pop("weight")) == ("", 1.0)
    assert re.fullmatch(r"\d+@.+", headers.pop("origin"))
    expected = json.loads(json.dumps(theirs.headers))
    expected.pop("origin")
    assert headers == expected
    assert json.loads(message["body"]) == json.loads(json.dumps(theirs.body))
    properties = message["properties"]
    assert {name: properties[name] for name in theirs.properties} == theirs.properties
    assert properties["delivery_info"] == {"exchange": "", "routing_key": QUEUE}
    assert (message["content-type"], message["content-encoding"]) == ("application/json", "utf-8")


def test_kombu_reads_the_job_back() -> None:
    class Channel:
        def decode_body(self, body: str, encoding: str) -> str:
            assert encoding == "utf-8"
            return body

    ours = job(generated_ids=[1, 2], trace={"traceparent": "00-1-2-03"}, job_class="batch", attempt=2)
    message = Message(decoded(celery_message(ours, QUEUE)), channel=Channel(), accept={"application/json"})  # type: ignore[no-untyped-call]
    arguments, keywords, _ = message.decode()  # type: ignore[no-untyped-call]
    assert job_of(arguments) == ours
    assert keywords == {}


def test_the_tail_holds_what_a_pull_reads_and_the_prompt_cannot_fake_it() -> None:
    fake = '"delivery_tag": "x", "cost": 1, "routing_key": "elsewhere", "id": "other"'
    parameters = GenerationParameters(max_new_tokens=7, seed=0, stop=[fake, json.dumps(fake)])
    ours = Job(id="request-1", model="m", parameters=parameters, prompt_ids=[1], reply_to="c", submitted_at=1.0)
    message = celery_message(ours, QUEUE).decode()
    tail = message[-4096:]
    found = {
        name: re.findall(rf'"{name}":\s*"?([^",}}]*)', tail) for name in ("delivery_tag", "cost", "routing_key", "id")
    }
    assert found["cost"] == ["8"]
    assert found["routing_key"] == [QUEUE]
    assert found["id"] == ["request-1"]
    assert found["delivery_tag"] == [decoded(message.encode())["properties"]["delivery_tag"]]


def test_every_message_has_a_delivery_tag_of_its_own() -> None:
    tags = {decoded(celery_message(job(), QUEUE))["properties"]["delivery_tag"] for _ in range(50)}
    assert len(tags) == 50


def test_prompts_are_in_the_body_only() -> None:
    message = decoded(celery_message(job(prompt_ids=[424242]), QUEUE))
    del message["body"]
    assert "424242" not in json.dumps(message)


@pytest.mark.parametrize("arguments", [[], [{}], [1], [{"id": "a"}, 2], None, "text"])
def test_job_of_refuses_anything_else(arguments: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        job_of(arguments)


class TestBroker:
    def of(self, url: str) -> tuple[str, dict[str, Any], dict[str, Any] | None]:
        return broker(Settings.of(redis_url=url))

    def test_passes_passwords_on_as_they_are(self) -> None:
        assert self.of("redis://:p%40ss@h:1/2") == ("redis://:p%40ss@h:1/2", {}, None)

    def test_checks_certificates_unless_told_otherwise(self) -> None:
        assert self.of("rediss://h/0") == ("rediss://h:6379/0", {}, {"ssl_cert_reqs": "required"})
        url, _, tls = self.of("rediss://u:p@h/0?ssl_ca_certs=/ca.pem&ssl_check_hostname=false")
        assert url == "rediss://u:p@h:6379/0"
        assert tls == {"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}

    def test_knows_sentinels(self) -> None:
        url, options, _ = self.of("sentinel://:p@a:1,b:2/3?master_name=main")
        assert url == "sentinel://:p@a:1/3;sentinel://:p@b:2/3"
        assert options["master_name"] == "main"

    @pytest.mark.parametrize("url", ["amqp://u:secret@h", "sentinel://:secret@a:1/0"])
    def test_refuses_what_it_cannot_use_without_showing_secrets(self, url: str) -> None:
        with pytest.raises(ValueError, match="REDIS_URL") as caught:
            self.of(url)
        assert "secret" not in str(caught.value)


def test_h14_no_results_are_kept_or_waited_for() -> None:
    with make_app(Settings.of(redis_url="redis://127.0.0.1:1/0")) as app:
        assert app.conf.result_backend is None
        assert app.conf.task_ignore_result


def test_building_is_cheap() -> None:
    """A web process builds one per request on its event loop."""
    ours = job(prompt_ids=list(range(4000)))
    began = time.process_time()
    for _ in range(100):
        celery_message(ours, QUEUE)
    assert (time.process_time() - began) / 100 < 0.005


def test_every_parameter_survives_the_way() -> None:
    parameters = GenerationParameters(
        max_new_tokens=7,
        seed=2**64 - 1,
        logit_bias={5: -100.0, 49_151: 0.5},
        stop_token_ids=[7],
        watermark=Watermark(0.25, 1.5, 2**64 - 1),
        grammar=Grammar("json", '{"properties":{"é":{"pattern":"\\\\d\\""}}}'),
    )
    sent = msgspec.structs.replace(job(), parameters=parameters)
    (arguments, *_) = json.loads(decoded(celery_message(sent, QUEUE))["body"])
    assert job_of(arguments) == sent
    assert job_of([msgspec.to_builtins(sent)]) == sent
