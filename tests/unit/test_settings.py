"""Settings: names, sources, limits, secrets, and the flags made from them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.redis_url import RedisAddress
from common.settings import DEFAULT_MODEL, Settings
from ops.cli import app
from ops.configuration import HIDDEN, BadSetting, Configuration, flag, variables, without_password
from ops.options import REDIS_SETTINGS


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the machine the tests run on; what a command exports is gone after the test."""
    before = dict(os.environ)
    for name in Settings.model_fields:
        for variable in variables(name):
            monkeypatch.delenv(variable, raising=False)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_names_are_tgis_or_start_with_tgq() -> None:
    assert Settings.variable("max_total_tokens").upper() == "MAX_TOTAL_TOKENS"
    assert Settings.variable("workers") == "TGQ_WORKERS"
    assert variables("max_input_tokens") == ["MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH"]


def test_names_of_other_programs_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORKERS": "7", "DEVICE": "cuda", "REDIS_PORT": "tcp://10.0.0.1:6379"}.items():
        monkeypatch.setenv(name, value)
    settings = Settings.of()
    assert (settings.workers, settings.device, settings.redis_url) == (1, "auto", None)


@pytest.mark.parametrize(
    ("value", "address"),
    [("a1b2c3d4", "0.0.0.0"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", "localhost")],
)
def test_a_containers_name_is_no_address(monkeypatch: pytest.MonkeyPatch, value: str, address: str) -> None:
    monkeypatch.setenv("HOSTNAME", value)
    assert Settings.of().hostname == address


def test_empty_variables_count_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "")
    monkeypatch.setenv("MODEL_ID", "")
    settings = Settings.of()
    assert (settings.port, settings.model_id) == (3000, DEFAULT_MODEL)


def test_flags_win_over_the_environment_and_sources_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "4000")
    monkeypatch.setenv("MAX_INPUT_LENGTH", "9")
    configuration = Configuration.load({"port": "5000"})
    assert configuration.settings.port == 5000
    assert configuration.settings.max_input_tokens == 9
    assert configuration.source("port") == "--port"
    assert configuration.source("max_input_tokens") == "MAX_INPUT_LENGTH"
    assert configuration.source("model_id") == "default"


def test_exported_flags_reach_the_processes_started(monkeypatch: pytest.MonkeyPatch) -> None:
    Configuration.load({"workers": "3", "model_id": "scripted"}).export()
    settings = Settings.of()
    assert (settings.workers, settings.model_id) == (3, "scripted")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PORT", "abc", "PORT: Input should be a valid integer"),
        ("PORT", "65536", "PORT: Input should be less than or equal to 65535"),
        ("TGQ_WORKERS", "0", "TGQ_WORKERS: Input should be greater than or equal to 1"),
        ("MAX_INPUT_LENGTH", "x", "MAX_INPUT_LENGTH: "),
        ("DTYPE", "int4", "DTYPE: Input should be 'float32', 'float16' or 'bfloat16'"),
    ],
)
def test_a_bad_value_names_its_variable_on_one_line(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    result = CliRunner().invoke(app, ["env"])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr


def test_a_bad_flag_is_named_as_a_flag() -> None:
    result = CliRunner().invoke(app, ["web", "--port", "abc"])
    assert result.exit_code == 2
    assert result.stderr.startswith("tgq: --port: ")


def test_limits_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(BadSetting, match=r"MAX_INPUT_TOKENS \(10\) must be less than MAX_TOTAL_TOKENS \(10\)"):
        Configuration.load({"max_input_tokens": "10", "max_total_tokens": "10"})


def test_env_hides_secrets_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hush-1")
    monkeypatch.setenv("REDIS_URL", "redis://user:hush-2@db.example:6380/3")
    for arguments in (["env"], ["env", "--json"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0
        assert "hush" not in result.output
        assert "db.example:6380/3" in result.output


def test_env_as_json_has_every_setting() -> None:
    shown = json.loads(CliRunner().invoke(app, ["env", "--json", "--workers", "2", "--trust-remote-code"]).stdout)
    assert set(shown) == {Settings.variable(name) for name in Settings.model_fields}
    assert shown["TGQ_WORKERS"] == {"value": 2, "source": "--workers"}
    assert shown["TRUST_REMOTE_CODE"] == {"value": True, "source": "--trust-remote-code"}
    assert shown["LOG_LEVEL"] == {"value": "info", "source": "default"}


def test_repeatable_flags_are_joined() -> None:
    arguments = [
        "env",
        "--json",
        "--cors-allow-origin",
        "https://a.example",
        "--cors-allow-origin",
        "https://b.example",
    ]
    shown = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert shown["CORS_ALLOW_ORIGIN"]["value"] == ["https://a.example", "https://b.example"]


def test_every_setting_is_a_flag_of_serve() -> None:
    help_text = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "80"}).stdout
    words = set(re.split(r"[\s,;\[\]]+", help_text))
    missing = [name for name in Settings.model_fields if not {flag(name), Settings.variable(name)} <= words]
    assert not missing


@pytest.mark.parametrize("command", ["ps", "drain", "undrain", "top", "queue", "running", "cancel", "worker-health"])
def test_operators_commands_have_flags_for_redis_alone(command: str) -> None:
    help_text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).stdout
    shown = {name for name in Settings.model_fields if f"  {flag(name)} " in help_text}
    assert shown == set(REDIS_SETTINGS)
    assert "`tgq env` shows all" in help_text
    assert len(help_text.splitlines()) < 50


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:secret@h:1/0", f"redis://:{HIDDEN}@h:1/0"),
        ("rediss://u:p%40ss@h/0?ssl_cert_reqs=none", f"rediss://u:{HIDDEN}@h/0?ssl_cert_reqs=none"),
        ("redis://h:1/0?password=secret&socket_timeout=5", f"redis://h:1/0?password={HIDDEN}&socket_timeout=5"),
        ("redis://user:super#secret@h/0", HIDDEN),
        (":secret@h", HIDDEN),
        ("redis://[broken", HIDDEN),
    ],
)
def test_passwords_in_urls_are_hidden(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url", ["redis://h:abc/0", "h:6379", ":secret@h", "redis://u:super#secret@h/0", "http://h/0", "redis://"]
)
def test_a_redis_url_nobody_can_dial_is_refused(url: str) -> None:
    with pytest.raises(BadSetting, match="redis://") as caught:
        Configuration.load({"redis_url": url})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["redis://h:1/0", "rediss://u:p%23ss@h/0", "redis://[::1]:6379", "sentinel://:p@a:1,b:2/0?master_name=m"]
)
def test_redis_urls_that_can_be_dialled(url: str) -> None:
    assert Configuration.load({"redis_url": url}).settings.redis_url == url


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://h:1/2", "redis://:p%40ss%2F@h:1/2"),
        ("redis://user@[::1]:1", "redis://user:p%40ss%2F@[::1]:1"),
        ("unix:///run/redis.sock?db=1", "unix://:p%40ss%2F@/run/redis.sock?db=1"),
        ("sentinel://a:1,b/0?master_name=m", "sentinel://:p%40ss%2F@a:1,b/0?master_name=m"),
    ],
)
def test_a_password_may_be_in_a_file(tmp_path: Path, url: str, whole: str) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss/\n")
    configuration = Configuration.load({"redis_url": url, "redis_password_file": str(file)})
    assert configuration.settings.broker_url == whole
    assert RedisAddress.parse(whole).password == "p@ss/"
    assert "p@ss" not in f"{configuration.shown('redis_url')} {configuration.settings!r}"


def test_a_file_without_a_password_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "full").write_text("word")
    for name, url, words in (
        ("empty", "redis://h", "no password in it"),
        ("missing", "redis://h", "cannot be read: FileNotFoundError"),
        ("full", "redis://:p@h", "needs a REDIS_URL without a password"),
        ("full", None, "needs a REDIS_URL"),
    ):
        flags = {"redis_password_file": str(tmp_path / name)} | ({} if url is None else {"redis_url": url})
        with pytest.raises(BadSetting, match=words):
            Configuration.load(flags)


def test_paths_are_shown_as_text() -> None:
    configuration = Configuration.load({"cache_dir": "/var/cache/models"})
    assert configuration.settings.cache_dir == Path("/var/cache/models")
    assert configuration.shown("cache_dir") == "/var/cache/models"
