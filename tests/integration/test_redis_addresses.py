"""Every kind of Redis URL, for everything that connects: the client's commands and subscription, a worker, a Celery producer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from traceback import format_exception

import httpx
import pytest
import redis
from typer.testing import CliRunner

from common.celery_app import make_app
from common.client import GenerationClient
from common.parameters import GenerationParameters
from common.redis_clients import async_redis, sync_redis
from common.settings import Settings
from ops.chaos.tcp_proxy import TcpProxy
from ops.cli import app
from ops.embedded_redis import EmbeddedRedis
from ops.ports import free_port
from tests.integration.web.serving import web_node
from tests.integration.workers.support import MODEL, until, worker
from tests.redis_servers import Certificates, SentinelGroup, make_certificates

PASSWORD = "p@ss/w:rd#?%"
QUOTED = "p%40ss%2Fw%3Ard%23%3F%25"
RULES = next(
    line.partition(">password ")[2]
    for line in Path(__file__).parents[2].joinpath("docs/redis.md").read_text().splitlines()
    if line.startswith("ACL SETUSER tgq on >password ")
)
"""That suffice, as the documents say."""
KINDS = ("password", "user", "socket", "tls", "sentinel")
OPERATORS = (
    *(["ps"], ["queue"], ["running"], ["cancel", "x"], ["drain", "x"], ["undrain", "x"], ["top", "--once"]),
    *(["worker-health", "--loaded"], ["env"], ["env", "--json"]),
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made with the openssl program")
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a server that can be reached in one way only."""
    kind = request.param
    options: dict[str, str] = {"requirepass": PASSWORD}
    with ExitStack() as stack:
        if kind == "sentinel":
            group = SentinelGroup(tmp_path, password="hush", sentinel_password="hush-2")
            yield stack.enter_context(group).url
            return
        path = tmp_path / "redis.sock"
        if kind == "user":
            options["user"] = f"tgq on >{PASSWORD} {RULES}"
        if kind == "socket":
            options |= {"unixsocket": str(path), "unixsocketperm": "700"}
        server = stack.enter_context(EmbeddedRedis(tmp_path, options=options))
        at = f"127.0.0.1:{server.port}"
        if kind == "tls":
            # The packaged server speaks no TLS: something in front of it does, as with stunnel.
            certificates: Certificates = request.getfixturevalue("certificates")
            proxy = stack.enter_context(TcpProxy(server.port or 0, tls=certificates.server_context()))
            yield f"rediss://:{QUOTED}@127.0.0.1:{proxy.port}/2?ssl_ca_certs={certificates.authority}"
            return
        yield {
            "password": f"redis://:{QUOTED}@{at}/3",
            "user": f"redis://tgq:{QUOTED}@{at}/0",
            "socket": f"unix://:{QUOTED}@{path}?db=1",
        }[kind]


@pytest.mark.parametrize("url", KINDS, indirect=True)
async def test_reaches_it_from_everywhere(url: str, tmp_path: Path) -> None:
    settings = Settings.of(redis_url=url, model_id=MODEL)
    directory = tmp_path / "worker"
    directory.mkdir()
    with worker(url, directory) as process:
        client = GenerationClient(settings)
        await client.start()
        try:
            assert client.connected
            async with client.generate(
                client.new_job([1, 2], GenerationParameters(max_new_tokens=3, seed=0))
            ) as stream:
                text = "".join([token.text async for tokens in stream for token in tokens.tokens])
            assert text == "0 1 2 "
        finally:
            await client.close()
        with make_app(settings) as app:
            queue = client.keys.queue(MODEL, "interactive")
            app.send_task("tgq.generate", [_plain_job()], queue=queue)
        until(lambda: ["end", "plain", "1"] in process.noted("end"), 30, "the job of a Celery producer")
        with sync_redis(settings) as commands:
            until(lambda: not list(commands.scan_iter(f"{client.keys.unacked('')}*")), 30, "its acknowledgement")
        process.terminate()
        assert process.wait() == 0
    assert QUOTED not in process.output.read_text()
    assert PASSWORD not in process.output.read_text()


def _plain_job() -> dict[str, object]:
    return {
        "id": "plain",
        "model": MODEL,
        "prompt_ids": [1],
        "parameters": {"max_new_tokens": 2, "seed": 0},
        "submitted_at": 0.0,
    }


@pytest.mark.parametrize("url", ["tls"], indirect=True)
async def test_certificates_are_checked(url: str, certificates: Certificates) -> None:
    stranger, trusting = (
        f"{url.partition('?')[0]}?{option}" for option in ("ssl_cert_reqs=required", "ssl_cert_reqs=none")
    )
    for unsafe in (stranger, url.replace("127.0.0.1", "localhost")):
        settings = Settings.of(redis_url=unsafe)
        with sync_redis(settings) as client, pytest.raises(redis.ConnectionError, match=r"certificate|CERTIFICATE"):
            client.ping()
        async with async_redis(settings) as commands:
            with pytest.raises(redis.ConnectionError):
                await commands.ping()
        with make_app(settings) as app, pytest.raises(app.connection().connection_errors):
            app.connection().connect()
    with sync_redis(Settings.of(redis_url=trusting)) as client:
        assert client.ping()


@pytest.mark.parametrize("url", ["password"], indirect=True)
async def test_a_wrong_password_is_an_error_that_does_not_show_it(url: str, tmp_path: Path) -> None:
    wrong = url.replace(QUOTED, "wr0ng-secret")
    async with async_redis(Settings.of(redis_url=wrong)) as client:
        with pytest.raises(redis.AuthenticationError) as caught:
            await client.ping()
    assert "wr0ng" not in str(caught.value)
    with worker(wrong, tmp_path, {"redis_connect_timeout": 0.2}) as process:
        assert process.wait(60) == 1
    output = process.output.read_text()
    assert "wr0ng" not in output
    assert "worker_cannot_start" in output


async def test_h32_a_password_is_nowhere_when_nobody_answers(tmp_path: Path) -> None:
    """Logs, answers, figures, what operators are told, tracebacks."""
    url = f"redis://someone:{QUOTED}@127.0.0.1:{free_port('127.0.0.1')}/0"
    folder = tmp_path / "worker"
    folder.mkdir()
    settings = {"redis_connect_timeout": 0.2, "log_level": "debug"}
    with worker(url, folder, settings) as process, web_node(tmp_path, url, **settings) as node:
        told = {}
        async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
            for path in ("/info", "/metrics", "/health", "/health/ready", "/v1/models"):
                told[path] = (await http.get(path)).text
            for path in ("/generate", "/v1/completions"):
                answer = await http.post(path, json={"inputs": "x", "prompt": "x"})
                assert answer.status_code == 503, answer.text
                told[path] = answer.text
        for words in OPERATORS:
            result = CliRunner().invoke(app, words, env={"REDIS_URL": url})
            error = "".join(format_exception(result.exception)) if result.exception is not None else ""
            told[" ".join(words)] = result.output + error
            assert isinstance(result.exception, SystemExit | None), error
        assert process.wait(60) == 1
        told |= {"web": node.log_text(), "worker": process.output.read_text()}
    assert "someone" in told["env"]
    assert all(told[name] for name in ("web", "worker", "ps", "queue", "running", "top --once"))
    assert not [name for name, text in told.items() if PASSWORD in text or QUOTED in text]
