"""Every flag of TGI's launcher: it is read, and what becomes of it is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from common.settings import Settings
from ops.configuration import Configuration, variables
from ops.launcher.arguments import SWITCHED_ON, parse
from ops.launcher.flags import FLAGS, VARIABLES, TgiFlag
from ops.launcher.translation import Translation, translate

READ = [known for known in (*FLAGS, *VARIABLES) if known.variable]
VALUES = {
    "--dtype": "bfloat16",
    "--quantize": "awq",
    "--cuda-graphs": "1,2",
    "--hostname": "127.0.0.1",
    "--cuda-memory-fraction": "0.5",
    "--watermark-gamma": "0.25",
    "--watermark-delta": "1.5",
    "--waiting-served-ratio": "1.2",
    "--cors-allow-origin": "https://a.example",
    "--otlp-endpoint": "http://127.0.0.1:4318",
    "LOG_LEVEL": "debug",
    "PREFIX_CACHING": "0",
    "USE_PREFIX_CACHING": "false",
}


def value_of(known: TgiFlag) -> str:
    return SWITCHED_ON if known.switch else VALUES.get(known.name or known.variable, "7")


def told(arguments: Sequence[str], **environment: str) -> Translation:
    return translate(parse(arguments), environment)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        for variable in variables(name):
            monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("known", FLAGS, ids=lambda known: known.name)
def test_every_flag_of_the_command_line(known: TgiFlag) -> None:
    result = told([known.name] if known.switch else [known.name, value_of(known)])
    assert [entry.startswith(f"{known.name}") for entry in result.refused] == [True] * (known.fate == "refused")
    assert [entry.startswith(f"{known.name}: ") for entry in result.ignored] == [True] * (known.fate == "ignored")
    assert result.settings == ({known.setting: value_of(known)} if known.setting else {})
    Configuration.load(result.settings)


@pytest.mark.parametrize("known", READ, ids=lambda known: known.variable)
def test_every_variable(known: TgiFlag, monkeypatch: pytest.MonkeyPatch) -> None:
    result = told([], **{known.variable: value_of(known)})
    assert len(result.refused) == (known.fate == "refused")
    assert len(result.ignored) == (known.fate == "ignored")
    monkeypatch.setenv(known.variable, value_of(known))
    if known.setting:
        default = Settings.model_fields[known.setting].get_default(call_default_factory=True)
        assert getattr(Configuration.load(result.settings).settings, known.setting) != default


def test_what_has_a_setting_of_its_name_is_honoured() -> None:
    known_settings = {variable for name in Settings.model_fields for variable in variables(name)}
    assert not [
        known.name for known in (*FLAGS, *VARIABLES) if known.fate != "honoured" and known.variable in known_settings
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num-shard", "1"],
        ["--sharded", "false"],
        ["--rope-scaling", "linear", "--rope-factor=1.0"],
    ],
)
def test_values_that_ask_for_nothing_are_taken(arguments: list[str]) -> None:
    assert told(arguments) == Translation()


def test_switches_that_a_variable_turns_off_are_off() -> None:
    assert told([], NGROK="false", DISABLE_CUSTOM_KERNELS="0", TRUST_REMOTE_CODE="") == Translation()


def test_refusals_name_flag_value_and_reason() -> None:
    result = told(["--num-shard", "2"], KV_CACHE_DTYPE="fp8_e5m2")
    assert [entry.partition(":")[0] for entry in result.refused] == ["KV_CACHE_DTYPE=fp8_e5m2", "--num-shard 2"]


@pytest.mark.parametrize("environment", [{}, {"MAX_INPUT_TOKENS": "20"}])
def test_both_names_of_the_longest_prompt_are_refused(environment: dict[str, str]) -> None:
    arguments = [] if environment else ["--max-input-tokens", "20"]
    result = told([*arguments, "--max-input-length", "10"], **environment)
    assert len(result.refused) == 1
    assert "one setting" in result.refused[0]
    assert not told([], MAX_INPUT_LENGTH="10").refused


def test_flags_win_over_variables_and_new_names_over_old_ones() -> None:
    assert told(["--port", "8080"], PORT="80").settings == {"port": "8080"}
    assert told([], USE_PREFIX_CACHING="0", PREFIX_CACHING="1").settings == {}
    assert told([], HF_API_TOKEN="old").environment == {"HF_TOKEN": "old"}
    assert told([], HF_API_TOKEN="old", HF_TOKEN="new").environment == {}


def test_repeated_origins_are_one_list() -> None:
    given = ["--cors-allow-origin", "https://a.example", "--cors-allow-origin=https://b.example", "-p", "1", "-g", "2"]
    settings = Configuration.load(told(given).settings).settings
    assert settings.cors_allow_origin == ["https://a.example", "https://b.example"]
    assert (settings.port, settings.graceful_termination_timeout) == (1, 2.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-input-token", "5"], "unexpected argument '--max-input-token'; similar: --max-input-tokens, --max-"),
        (["--num_shard=2"], "unexpected argument '--num_shard'; similar: --num-shard"),
        (["--redis-url", "redis://x"], "that is a flag of `tgq serve`; set REDIS_URL here"),
        (["--zebra"], "unexpected argument '--zebra'; --help lists what there is"),
        (["stray"], "unexpected argument 'stray'"),
        (["--port"], "-p/--port: expected one argument"),
        (["--port", "1", "--port", "2"], "--port is given more than once"),
        (["--trust-remote-code=yes"], "ignored explicit argument 'yes'"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(arguments)
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith("text-generation-launcher: ")
    assert words in message


def test_help_has_every_flag_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert not [known.name for known in FLAGS if known.name not in text]
    assert not [known.group for known in FLAGS if f"{known.group}:" not in text]
