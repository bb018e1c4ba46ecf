"""The services of docker-compose.yml as processes of this machine, by the commands, variables and health checks in that file,
with its host names translated: one answer goes through all of them, and stopping them ends within their grace periods."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from common.redis_checks import check_redis
from common.settings import Settings
from ops.child_process import spawn
from ops.embedded_redis import server_program
from ops.ports import free_port
from tests.compose_file import OURS, compose, seconds
from tests.images.dockerfile import read_dockerfile
from tests.structure.test_compose import DOCKERFILE
from workers.engine.default_model import ensure_default_model

PASSWORD = "a-password-for-tests"
TGQ = [sys.executable, "-m", "ops.cli"]


class Containers:
    """Each service is one process. What an image or a volume would give it comes from `folder`."""

    def __init__(self, folder: Path) -> None:
        self.document = compose(variables={"REDIS_PASSWORD": PASSWORD})
        self.services: dict[str, Any] = self.document["services"]
        self.folder = folder
        self.ports = {"redis": free_port("127.0.0.1"), "web": free_port("127.0.0.1")}
        self.processes: dict[str, subprocess.Popen[Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['web']}"

    def start(self, name: str) -> None:
        command = self.services[name]["command"]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = spawn(
                [server_program(), self._redis_configuration()] if name == "redis" else [*TGQ, *command],
                environment=self.environment(name),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def environment(self, name: str) -> dict[str, str]:
        service = self.services[name]
        image: dict[str, str] = {}
        if "build" in service:
            image = read_dockerfile(DOCKERFILE)[service["build"]["target"]].environment
        given = {**image, **service.get("environment", {})}
        translated = {
            "HOSTNAME": "127.0.0.1",
            "PORT": str(self.ports["web"]),
            "TGQ_CACHE_DIR": str(Settings.of().cache_dir),
            "HF_HOME": str(self.folder / "data"),
            "TGQ_BATCH_STORAGE": str(self.folder / "files"),
            "REDIS_URL": given.get("REDIS_URL", "").replace("@redis:6379", f"@127.0.0.1:{self.ports['redis']}"),
        }
        return {
            **os.environ,
            **given,
            **translated,
            "PATH": os.environ["PATH"],
            "HF_HUB_OFFLINE": "1",
            "TGQ_DEVICE": "cpu",
        }

    def healthy(self, name: str) -> bool:
        """Runs the service's own check."""
        kind, *words = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        program = {"python": [sys.executable], "tgq": TGQ}[words[0]]
        arguments = [word.replace(":3000/", f":{self.ports['web']}/") for word in words[1:]]
        return subprocess.run([*program, *arguments], env=self.environment(name), capture_output=True).returncode == 0

    def redis(self) -> redis.Redis:
        return redis.Redis("127.0.0.1", self.ports["redis"], password=PASSWORD, socket_timeout=5)

    def logs(self) -> str:
        return "\n".join(f"--- {log.stem}\n{log.read_text()[-1500:]}" for log in self.folder.glob("*.log"))

    def stop(self, name: str) -> int:
        """SIGTERM; the exit status, if it comes within the service's grace period."""
        self.processes[name].send_signal(signal.SIGTERM)
        return self.processes[name].wait(seconds(self.services[name]["stop_grace_period"]))

    def _redis_configuration(self) -> Path:
        text = self.document["configs"]["valkey"]["content"]
        (self.folder / "redis").mkdir(exist_ok=True)
        text = re.sub("^bind .*", f"bind 127.0.0.1\nport {self.ports['redis']}", text, flags=re.MULTILINE)
        file = self.folder / "valkey.conf"
        file.write_text(text.replace("dir /data", f"dir {self.folder / 'redis'}"))
        return file


def wait(condition: Callable[[], bool], containers: Containers, patience: float = 120.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        ended = [name for name, process in containers.processes.items() if process.poll() is not None]
        assert not ended, f"{ended} ended\n{containers.logs()}"
        assert time.monotonic() < deadline, containers.logs()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    ensure_default_model(Settings.of(), lambda stage, fraction: None)  # as the web image has it built in
    containers = Containers(tmp_path_factory.mktemp("compose"))
    try:
        containers.start("redis")
        with containers.redis() as client:
            wait(lambda: _answers(client), containers)
        for name in OURS:
            containers.start(name)
        wait(lambda: containers.healthy("worker"), containers)
        wait(lambda: containers.healthy("web"), containers)
        yield containers
    finally:
        for process in containers.processes.values():
            process.kill()
            process.wait()


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def test_an_answer_goes_through_all_of_them(containers: Containers) -> None:
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 8,
    }
    answer = httpx.post(f"{containers.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]


def test_redis_is_set_as_the_service_wants_it(containers: Containers) -> None:
    with containers.redis() as client:
        assert check_redis(client) == []
        assert client.config_get("appendonly") == {b"appendonly": b"yes"} or client.config_get("appendonly") == {
            "appendonly": "yes"
        }
        assert client.acl_whoami() in ("default", b"default")
    with redis.Redis("127.0.0.1", containers.ports["redis"]) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_a_batch_goes_through_all_of_them(containers: Containers) -> None:
    line = (
        '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", '
        '"body": {"messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 4}}\n'
    )
    with httpx.Client(base_url=containers.url, timeout=60) as client:
        file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("lines.jsonl", line)}).json()
        batch = client.post(
            "/v1/batches",
            json={"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        ).json()

        def ended() -> bool:
            batch.update(client.get(f"/v1/batches/{batch['id']}").json())
            return batch["status"] in ("completed", "failed", "expired", "cancelled")

        wait(ended, containers)
        assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}, batch
        assert client.get(f"/v1/files/{batch['output_file_id']}/content").json()["custom_id"] == "a"


def test_they_stop_within_their_grace_periods(containers: Containers) -> None:
    """The last one here: nothing is left of the services after it."""
    assert {name: containers.stop(name) for name in (*OURS, "redis")} == dict.fromkeys((*OURS, "redis"), 0)
