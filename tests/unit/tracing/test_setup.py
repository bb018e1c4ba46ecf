"""Whether a process traces, and where to."""

from __future__ import annotations

import logging
import time

import pytest
from opentelemetry.sdk.resources import Resource
from pydantic import ValidationError

from common.settings import Settings
from common.tracing.setup import start_tracing, traces_endpoint
from common.tracing.tracing import Tracing, process_resource
from ops.configuration import Configuration
from ops.ports import free_port
from tests.otlp_receiver import OtlpReceiver

EXACT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTLP_ENDPOINT", "OTLP_SERVICE_NAME", "OTEL_SERVICE_NAME", "OTEL_EXPORTER_OTLP_ENDPOINT", EXACT):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("base", "environment", "endpoint"),
    [
        (None, {}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("https://c/otlp/", {}, "https://c/otlp/v1/traces"),
        ("http://c:9/v1/traces", {}, "http://c:9/v1/traces"),
        (None, {EXACT: "http://c:9/mine"}, "http://c:9/mine"),
        ("http://c:4318", {EXACT: "http://d:9/mine"}, "http://d:9/mine"),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "true"}, None),
        ("http://c:4318", {"OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_where_spans_go(
    base: str | None, environment: dict[str, str], endpoint: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert traces_endpoint(base, environment) == endpoint
    assert not caplog.records


@pytest.mark.parametrize(
    ("base", "environment", "endpoint", "warning"),
    [
        ("http://c:4317", {}, "http://c:4318/v1/traces", "4317"),
        ("http://me:4317@[::1]:4317/", {}, "http://me:4317@[::1]:4318/v1/traces", "4317"),
        ("http://c:4318", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://c:4318/v1/traces", "grpc"),
        ("http://c:4318", {"OTEL_TRACES_EXPORTER": "zipkin"}, "http://c:4318/v1/traces", "zipkin"),
    ],
)
def test_what_cannot_be_done_is_told(
    base: str, environment: dict[str, str], endpoint: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert traces_endpoint(base, environment) == endpoint
    assert [warning in record.message for record in caplog.records] == [True]


def test_there_is_no_tracing_without_an_endpoint() -> None:
    assert start_tracing(Settings.of(), "web", "here-1") is None


def test_the_standard_variables_are_settings_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    settings = Settings.of()
    assert (settings.otlp_endpoint, settings.otlp_service_name) == ("http://c:4318", "mine")
    monkeypatch.setenv("OTLP_ENDPOINT", "http://d:4318")
    assert Settings.of().otlp_endpoint == "http://d:4318"


@pytest.mark.parametrize("endpoint", ["collector:4317", "ftp://c:1", "http://", "http://c:port", "http://c:70000"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="OTLP_ENDPOINT"):
        Settings.of(otlp_endpoint=endpoint)


def test_a_password_in_the_endpoint_is_not_shown() -> None:
    settings = Settings.of(otlp_endpoint="http://me:secret@c:4318")
    assert "secret" not in str(Configuration(settings, {}).shown("otlp_endpoint"))


def test_what_a_process_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(resource: Resource) -> object:
        return resource.attributes["service.name"]

    assert name(process_resource(None, "worker", "here-1")) == "tgq-worker"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=theirs,deployment.environment.name=lab")
    resource = process_resource(None, "worker", "here-1")
    assert name(resource) == "theirs"
    assert resource.attributes["deployment.environment.name"] == "lab"
    assert resource.attributes["service.instance.id"] == "here-1"
    assert name(process_resource("ours", "worker", "here-1")) == "ours"


def test_stopping_is_bounded_without_a_collector_which_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    tracing = Tracing.exporting(f"http://127.0.0.1:{free_port('127.0.0.1')}", name=None, part="web", instance="here-1")
    for _ in range(100):
        tracing.begin("span", "internal").end()
    began = time.monotonic()
    tracing.stop()
    assert time.monotonic() - began < 6
    while not caplog.records and time.monotonic() - began < 30:
        time.sleep(0.01)
    (told,) = caplog.messages
    assert told == "the collector of traces does not answer, or refuses them: spans are lost"


def test_stopping_sends_what_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.tracing.tracing.STOP_SECONDS", 30.0)
    with OtlpReceiver() as collector:
        tracing = Tracing.exporting(f"{collector.url}/v1/traces", name="mine", part="web", instance="here-1")
        with tracing.begin("outer", "server") as outer, tracing.begin("inner", "internal", outer):
            pass
        tracing.stop()
        assert [(span.name, span.service) for span in collector.spans] == [("inner", "mine"), ("outer", "mine")]
        assert collector.spans[0].parent == collector.spans[1].id
