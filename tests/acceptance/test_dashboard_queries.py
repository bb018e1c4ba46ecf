"""A running service exports what our rules, alerts, dashboards and autoscalers ask for, and Prometheus answers their queries."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from common.limits import Limits
from common.metrics import WebMetrics
from ops.child_process import spawn
from ops.local_service import LocalService
from ops.ports import free_port
from tests.acceptance.native import script
from tests.promql import DASHBOARDS, PROMETHEUS_OWN, ROOT, RULES, all_queries, dashboard_queries, metric_names, rules

TGI_NAMES = {
    *("tgi_request_count", "tgi_request_success", "tgi_request_failure", "tgi_queue_size"),
    *("tgi_batch_current_size", "tgi_batch_current_max_tokens"),
    *("tgi_request_duration_bucket", "tgi_request_queue_duration_bucket", "tgi_request_input_length_bucket"),
    *("tgi_request_generated_tokens_bucket", "tgi_request_generated_tokens_sum", "tgi_request_generated_tokens_count"),
    *("tgi_request_mean_time_per_token_duration_bucket", "tgi_batch_inference_duration_bucket"),
    *("tgi_batch_forward_duration_bucket", "tgi_batch_decode_duration_bucket"),
}
"""What TGI's own dashboard asks for; docs/dashboards.md says which of its panels stay empty."""


def conditional() -> set[str]:
    """Metrics that come with the first event they count, as docs/dashboards.md lists them."""
    text = (ROOT / "docs/dashboards.md").read_text()
    table = text[text.index("## What comes with its first event") :]
    return set(re.findall(r"^\| `(\w+)", table, re.MULTILINE))


def exported(text: str) -> set[str]:
    return set(re.findall(r"^([a-zA-Z_:]\w*)(?:\{| )", text, re.MULTILINE))


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    """With some requests behind it: one that succeeds, one that is refused."""
    with LocalService({"MODEL_ID": "scripted"}) as service:
        body = {"inputs": script("word ", repeat=20), "parameters": {"max_new_tokens": 20}}
        assert httpx.post(f"{service.url}/generate", json=body, timeout=60).status_code == 200
        assert (
            httpx.post(f"{service.url}/generate", json={**body, "parameters": {"top_p": 2}}, timeout=60).status_code
            == 422
        )
        deadline = time.monotonic() + 30
        # The worker tells of it with its heartbeats, of which one may fall into the middle of the request.
        while 'tgi_batch_inference_count{method="decode"}' not in httpx.get(f"{service.url}/metrics", timeout=30).text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield service


def test_every_metric_that_is_asked_for_is_exported(service: LocalService) -> None:
    asked = {name for query in all_queries() for name in metric_names(query) if ":" not in name} - PROMETHEUS_OWN
    missing = (asked | TGI_NAMES) - exported(httpx.get(f"{service.url}/metrics", timeout=30).text)
    assert missing <= conditional()


def test_conditional_metrics_are_real(service: LocalService) -> None:
    """Each is defined by a web process, or was exported by a service in another test; none is only in the documents."""
    defined = {family.name for family in WebMetrics(Limits(8, 16))._registry.collect()}
    sources = "\n".join((ROOT / "common").joinpath(file).read_text() for file in ("engine_metrics.py",))
    sources += "".join(path.read_text() for path in (ROOT / "common").rglob("*.py") if "Family" in path.read_text())
    unknown = {
        name for name in conditional() if name.removesuffix("_total") not in defined and f'"{name}"' not in sources
    }
    assert not unknown


@pytest.fixture(scope="module")
def prometheus(service: LocalService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Prometheus that scrapes the service every second and has our rules."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: apt install prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    # With rates over 5 minutes there are figures after two scrapes.
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(file) for file in RULES],
        "scrape_configs": [
            {
                "job_name": "tgq",
                "static_configs": [{"targets": [service.url.removeprefix("http://")], "labels": {"container": "tgq"}}],
            }
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    port = free_port("127.0.0.1")
    with (folder / "log").open("wb") as log:
        process = spawn(
            [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, "count_over_time(tgq_workers[5m]) > 3", folder / "log")
        body = {"inputs": script("word ", repeat=20), "parameters": {"max_new_tokens": 20}}
        for _ in range(3):
            assert httpx.post(f"{service.url}/generate", json=body, timeout=60).status_code == 200
        _wait_for(url, "tgq:requests:rate5m > 0 and on () tgq:generated_tokens:rate5m > 0", folder / "log")
        yield url
    finally:
        process.kill()
        process.wait()


def _query(url: str, expression: str) -> list[object]:
    response = httpx.get(f"{url}/api/v1/query", params={"query": expression}, timeout=30)
    if response.status_code == 503:
        response.raise_for_status()  # While it starts, it answers without JSON.
    answer = response.json()
    assert answer["status"] == "success", (expression, answer)
    found: list[object] = answer["data"]["result"]
    return found


def _wait_for(url: str, expression: str, log: Path, patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            if _query(url, expression):
                return
        except httpx.HTTPError:
            pass  # it is starting
        assert time.monotonic() < deadline, (expression, log.read_text()[-2000:])
        time.sleep(0.2)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_every_panel_has_data(prometheus: str, file: Path) -> None:
    queries = [(title, query.replace("[1m]", "[5m]")) for title, query in dashboard_queries(file)]
    queries = [found for found in queries if not metric_names(found[1]) & conditional()]
    deadline = time.monotonic() + 30
    # After a scrape that took longer than its second there is nothing until the next one.
    while queries := [(title, query) for title, query in queries if not _query(prometheus, query)]:
        assert time.monotonic() < deadline, queries
        time.sleep(0.2)


def test_every_rule_is_evaluated(prometheus: str) -> None:
    groups = httpx.get(f"{prometheus}/api/v1/rules", timeout=30).json()["data"]["groups"]
    loaded = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(loaded) == {rule.get("record") or rule["alert"] for rule in rules()}
    assert {rule["health"] for rule in loaded.values()} <= {"ok", "unknown"}
    assert not [name for name, rule in loaded.items() if rule.get("state") == "firing"]
