"""The services of docker-compose.yml as processes of this machine, by the commands, variables and health checks in that file,
with its host names translated: one answer goes through all of them, and stopping them ends within their grace periods."""

from __future__ import annotations

import hashlib
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
from redis.backoff import NoBackoff
from redis.retry import Retry

from common.redis_checks import check_redis
from common.settings import Settings
from ops.child_process import spawn
from ops.embedded_redis import server_program
from ops.ports import free_port
from tests.compose_file import OURS, compose, seconds
from tests.images.dockerfile import read_dockerfile
from tests.redis_servers import answers, assert_out_of_reach
from tests.structure.test_compose import DOCKERFILE
from workers.engine.default_model import ensure_default_model

TGQ = [sys.executable, "-m", "ops.cli"]
ACCESS = "/run/tgq"
"""Where containers find the password of Redis."""


class Containers:
    """Each service is one process. What an image or a volume would give it comes from `folder`."""

    def __init__(self, folder: Path) -> None:
        self.document = compose()
        self.services: dict[str, Any] = self.document["services"]
        self.folder = folder
        self.ports = {"redis": free_port("127.0.0.1"), "web": free_port("127.0.0.1")}
        self.processes: dict[str, subprocess.Popen[Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['web']}"

    @property
    def password(self) -> str:
        return (self.folder / "access/redis-password").read_text().strip()

    def grant_access(self, password: str = "") -> None:
        """Run the service that makes the password and the rules of Redis."""
        (self.folder / "access").mkdir(exist_ok=True)
        service = self.services["redis-access"]
        command = [word.replace(ACCESS, str(self.folder / "access")) for word in service["command"]]
        subprocess.run(command, env={**os.environ, "REDIS_PASSWORD": password}, check=True)

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
            "REDIS_URL": given.get("REDIS_URL", "").replace("//redis:6379", f"//127.0.0.1:{self.ports['redis']}"),
            "TGQ_REDIS_PASSWORD_FILE": given.get("TGQ_REDIS_PASSWORD_FILE", "").replace(
                ACCESS, f"{self.folder}/access"
            ),
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

    def redis(self, password: str | None = None) -> redis.Redis:
        return redis.Redis(
            "127.0.0.1",
            self.ports["redis"],
            password=self.password if password is None else password,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
        )

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
        file.write_text(text.replace("dir /data", f"dir {self.folder}/redis").replace(ACCESS, f"{self.folder}/access"))
        return file


def wait(condition: Callable[[], bool], containers: Containers, patience: float = 240.0, pause: float = 0.2) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        ended = [name for name, process in containers.processes.items() if process.poll() is not None]
        assert not ended, f"{ended} ended\n{containers.logs()}"
        assert time.monotonic() < deadline, containers.logs()
        time.sleep(pause)


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    ensure_default_model(Settings.of(), lambda stage, fraction: None)  # as the web image has it built in
    containers = Containers(tmp_path_factory.mktemp("compose"))
    try:
        containers.grant_access()
        containers.start("redis")
        with containers.redis() as client:
            wait(lambda: answers(client), containers)
        for name in OURS:
            containers.start(name)
        # A check is a process of its own, and takes time from those that start.
        wait(lambda: containers.healthy("worker"), containers, pause=1.0)
        wait(lambda: containers.healthy("web"), containers, pause=1.0)
        yield containers
    finally:
        for process in containers.processes.values():
            process.kill()
            process.wait()


def test_g19_an_answer_goes_through_all_of_them_and_the_first_is_as_the_tenth(containers: Containers) -> None:
    """The worker was ready, so its engine has computed before: the first request meets no other engine than later ones."""
    body = {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 8,
        "logprobs": True,
    }
    answers = []
    with httpx.Client(base_url=containers.url, timeout=120) as client:
        for _ in range(10):
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            answers.append(answer.json()["choices"])
    assert "Paris" in answers[0][0]["message"]["content"]
    assert answers == [answers[0]] * 10


def test_redis_is_set_as_the_service_wants_it(containers: Containers) -> None:
    with containers.redis() as client:
        assert check_redis(client) == []
        assert client.config_get("appendonly") == {b"appendonly": b"yes"} or client.config_get("appendonly") == {
            "appendonly": "yes"
        }
        assert client.acl_whoami() in ("default", b"default")
    for password in ("", "only-inside"):
        with containers.redis(password) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_h31_nobody_can_take_redis_over(containers: Containers) -> None:
    with containers.redis() as client:
        assert_out_of_reach(client)


def test_h31_the_password_is_drawn_once_unless_it_is_given(tmp_path: Path) -> None:
    one, other = Containers(tmp_path / "one"), Containers(tmp_path / "other")
    for installation in (one, other):
        installation.folder.mkdir()
        installation.grant_access()
    drawn = one.password
    assert re.fullmatch("[0-9a-f]{64}", drawn)
    assert drawn != other.password
    one.grant_access()
    assert one.password == drawn
    one.grant_access("given")
    assert one.password == "given"
    rules = (tmp_path / "one/access/users.acl").read_text()
    assert hashlib.sha256(b"given").hexdigest() in rules
    assert "given" not in rules


def test_operators_commands_work_with_it(containers: Containers) -> None:
    for command in ("ps", "queue", "running"):
        told = subprocess.run([*TGQ, command, "--json"], env=containers.environment("web"), capture_output=True)
        assert told.returncode == 0, told.stderr


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
    logs = {log.stem: log.read_text() for log in containers.folder.glob("*.log")}
    assert not [name for name, text in logs.items() if "NOPERM" in text or containers.password in text]
