"""The Redis of the Kubernetes manifests, as a process: it wants its password, and cannot be taken over with it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import redis
import yaml
from redis.backoff import NoBackoff
from redis.retry import Retry

from common.redis_checks import check_redis
from ops.child_process import spawn
from ops.embedded_redis import HOST, server_program
from ops.ports import free_port
from tests.redis_servers import answers, assert_out_of_reach

BASE = Path(__file__).parents[2] / "ops/kubernetes/base"


def test_h31_it_cannot_be_taken_over(tmp_path: Path) -> None:
    manifests = yaml.safe_load_all((BASE / "redis.yaml").read_text())
    (server,) = (manifest for manifest in manifests if manifest["kind"] == "StatefulSet")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    shell, option, script = container["command"]
    port = free_port(HOST)
    file = tmp_path / "valkey.conf"
    settings = (BASE / "valkey.conf").read_text().replace("bind * -::*", f"bind {HOST}\nport {port}")
    file.write_text(settings.replace("dir /data", f"dir {tmp_path}"))
    script = script.replace("valkey-server", str(server_program())).replace("/etc/valkey/valkey.conf", str(file))
    with (tmp_path / "log").open("wb") as log:
        process = spawn(
            [shell, option, script], environment={"REDISCLI_AUTH": "hush"}, stdout=log, stderr=subprocess.STDOUT
        )
    once = Retry(NoBackoff(), 0)
    try:
        with redis.Redis(HOST, port, password="hush", socket_timeout=5, retry=once) as client:
            _wait_for(client, process, tmp_path / "log")
            assert check_redis(client, durable=True) == []
            assert_out_of_reach(client)
        with redis.Redis(HOST, port, socket_timeout=5, retry=once) as stranger:
            assert not answers(stranger)
    finally:
        process.kill()
        process.wait()


def _wait_for(client: redis.Redis, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while not answers(client):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
