"""What the command line's words come to, and what is told of wrong ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.batches.input import BadInput
from ops.bench.serve.apis import APIS
from ops.bench.serve.outputs import Outputs
from ops.bench.serve.plan import Load, LoadKind, goals, headers, loads
from ops.bench.serve.target import Target, targets
from ops.cli import app

CHAT = APIS["openai-chat"]
NOBODY = "http://127.0.0.1:1"


def test_loads() -> None:
    assert loads(None, "1,4 16") == tuple(Load(LoadKind.CONCURRENCY, width) for width in (1, 4, 16))
    assert loads("0.5,inf", None) == (Load(LoadKind.RATE, 0.5), Load(LoadKind.RATE, math.inf))
    assert [str(load) for load in loads("0.5,inf", None)] == ["0.5 req/s", "inf req/s"]
    assert [load.value for load in loads(None, None)] == [1, 4, 16]


def test_goals_are_milliseconds() -> None:
    assert goals(["ttft:500 tpot:50", "e2el:3000"]) == {"ttft": 0.5, "tpot": 0.05, "e2e": 3.0}
    assert goals([]) == {}


@pytest.mark.parametrize("word", ["ttft", "ttft:x", "itl:5", "ttft:-1", "ttft:inf", "ttft:5,ttft:6", ":5"])
def test_bad_goals_are_told(word: str) -> None:
    with pytest.raises(BadInput, match="--goodput"):
        goals([word])


def test_a_header_that_is_wrong_keeps_its_value_to_itself() -> None:
    assert headers(["X-Team: a b", "x-empty:"]) == {"X-Team": "a b", "x-empty": ""}
    for wrong in ("secret", "X-A: secret\r\nHost: x", "X A: secret", "Host: secret", "X-A: sécret"):
        with pytest.raises(BadInput) as told:
            headers([wrong])
        assert "secret" not in str(told.value)
        assert "sécret" not in str(told.value)


@pytest.mark.parametrize(
    ("url", "path", "port"),
    [
        ("http://127.0.0.1:3000", "/v1/chat/completions", 3000),
        ("127.0.0.1:3000/", "/v1/chat/completions", 3000),
        ("http://127.0.0.1:3000/v1/", "/v1/chat/completions", 3000),
        ("http://127.0.0.1:3000/v1/chat/completions", "/v1/chat/completions", 3000),
        ("https://127.0.0.1/deep/v1", "/deep/v1/chat/completions", 443),
        ("http://[::1]/x", "/x/v1/chat/completions", 80),
    ],
)
def test_addresses(url: str, path: str, port: int) -> None:
    target = Target.of(url, CHAT, headers={}, api_key=None)
    assert (target.path, target.port, target.tls is not None) == (path, port, url.startswith("https"))


@pytest.mark.parametrize(
    "url",
    ["ftp://127.0.0.1", "http://", "http://127.0.0.1:x", "http://me:secret@127.0.0.1", "http://127.0.0.1/?a=secret"],
)
def test_bad_addresses_are_told(url: str) -> None:
    with pytest.raises(BadInput, match="--url"):
        Target.of(url, CHAT, headers={}, api_key=None)


def test_two_servers_have_letters_and_may_have_keys_of_their_own() -> None:
    first, second = targets([NOBODY, NOBODY], CHAT, headers={"X-Team": "a"}, keys=["k1", "k2"])
    assert (first.name, second.name) == ("A 127.0.0.1:1", "B 127.0.0.1:1")
    assert first is not second
    assert first != second
    assert b"Authorization: Bearer k2\r\nX-Team: a\r\n" in second.head()
    shared = targets([NOBODY, NOBODY], CHAT, headers={}, keys=["k1"])
    assert [target.headers["Authorization"] for target in shared] == ["Bearer k1"] * 2
    assert "k1" not in repr(shared)


def test_plots_want_matplotlib_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ops.bench.serve.outputs.can_draw", lambda: False)
    with pytest.raises(BadInput, match="pip install matplotlib"):
        Outputs(plots=tmp_path / "plots").check()
    assert not (tmp_path / "plots").exists()
    Outputs(report=tmp_path / "report.html").check()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--concurrency", "0"), "--concurrency 0"),
        (("--concurrency", "1,1"), "twice"),
        (("--concurrency", ","), "numbers are wanted"),
        (("--request-rate", "-1"), "--request-rate -1"),
        (("--request-rate", "nan"), "--request-rate nan"),
        (("--request-rate", "1", "--concurrency", "1"), "give one of them"),
        (("--request-rate", "inf", "--duration", "3"), "--num-prompts"),
        (("--concurrency", "1", "--max-concurrency", "3"), "--max-concurrency is for --request-rate"),
        (("--concurrency", "1", "--burstiness", "3"), "--burstiness is for --request-rate"),
        (("--request-rate", "1", "--burstiness", "0"), "--burstiness 0"),
        (("--duration", "0"), "--duration 0"),
        (("--timeout", "nan"), "--timeout nan"),
        (("--extra-body", "["), "--extra-body is not JSON"),
        (("--extra-body", "[]"), "a JSON object is wanted"),
        (("--extra-body", '{"stream": false}'), "stream is not free to choose"),
        (("--api", "tgi", "--model", "m"), "--model"),
        (("--api", "tgi", "--continuous-usage"), "--continuous-usage"),
        (("--dataset", "absent.jsonl"), "absent.jsonl cannot be read"),
        (("--dataset", "absent.jsonl", "--input-len", "3"), "--input-len is for made-up prompts"),
        (("--url", NOBODY, "--compare", NOBODY), "two servers at most"),
        (("--api-key", "a", "--api-key", "b"), "one key, or one for each"),
        (("--api-key", "a", "--header", "authorization: x"), "says the same"),
        (("--json", "nowhere/out.json"), "there is no folder nowhere"),
        (("--report", "."), "it is a folder"),
    ],
)
def test_wrong_options_are_told_before_anything_is_sent(
    arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["bench", "serve", "--url", NOBODY, *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    (told,) = done.stderr.splitlines()
    assert told.startswith("tgq: ")
    assert words in told
