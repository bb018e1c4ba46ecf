"""Files of API keys."""

from __future__ import annotations

import json
import logging
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from common.api_keys import KeyRing, parse_keys
from common.settings import Settings

DIGEST = sha256(b"hush").hexdigest()


def ring(path: Path | None = None, key: str | None = None) -> KeyRing:
    return KeyRing(Settings.of(api_keys_file=path, api_key=key))


def names(keys: KeyRing, *secrets: str) -> list[str | None]:
    found = [keys.find(secret.encode()) for secret in secrets]
    return [key.name if key is not None else None for key in found]


def test_toml_and_json_say_the_same() -> None:
    toml = f"""
        [[keys]]
        name = "a"
        secret = "clé"
        requests_in_flight = 2
        tokens_per_minute = 100
        models = ["m"]
        [[keys]]
        name = "b"
        sha256 = "{DIGEST.upper()}"
    """
    entries = [
        {"name": "a", "secret": "clé", "requests_in_flight": 2, "tokens_per_minute": 100, "models": ["m"]},
        {"name": "b", "sha256": DIGEST},
    ]
    keys = parse_keys(toml, toml=True)
    assert keys == parse_keys(json.dumps({"keys": entries}), toml=False)
    one, other = keys
    assert (one.requests_in_flight, one.tokens_per_minute, one.limited) == (2, 100, True)
    assert [one.may_use("m"), one.may_use("n"), other.may_use("n")] == [True, False, True]
    assert (other.digest.hex(), other.limited) == (DIGEST, False)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"name": "a"}], "`keys.0`: Value error, a key has either `secret` or `sha256`"),
        ([{"name": "a", "secret": "hush", "sha256": DIGEST}], "either"),
        ([{"name": "a b", "secret": "hush"}], "`keys.0.name`"),
        ([{"name": "a", "secret": ""}], "`keys.0.secret`"),
        ([{"name": "a", "sha256": "hush"}], "`keys.0.sha256`"),
        ([{"name": "a", "secret": "hush", "requests_in_flight": 0}], "`keys.0.requests_in_flight`"),
        ([{"name": "a", "secret": "hush", "tokens_per_minute": "9"}], "`keys.0.tokens_per_minute`"),
        ([{"name": "a", "secret": "hush", "token_per_minute": 9}], "`keys.0.token_per_minute`"),
        ([{"name": "a", "secret": "hush"}, {"name": "a", "secret": "other"}], "the same name"),
        ([{"name": "a", "secret": "hush"}, {"name": "b", "sha256": DIGEST}], "the same secret"),
        ([{"name": "default", "secret": "hush"}], "`default`"),
        ("hush", "`keys`"),
    ],
)
def test_what_is_wrong_is_said_without_secrets(entries: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_keys(json.dumps({"keys": entries}), toml=False)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_files_that_cannot_be_parsed_are_not_quoted() -> None:
    for text, toml in (('keys = [{secret = "hush" ', True), ('{"keys": [{"secret": "hush" ]', False)):
        with pytest.raises(ValueError, match=r"^not (TOML|JSON)(, see line 1)?$"):
            parse_keys(text, toml=toml)


def test_without_keys_nobody_needs_one(tmp_path: Path) -> None:
    assert not ring().required
    empty = tmp_path / "keys.toml"
    empty.write_text("keys = []")
    nobody = ring(empty)
    assert nobody.required
    assert names(nobody, "", "x") == [None, None]


def test_the_setting_s_key_stands_beside_the_file_s(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "a", "secret": "one"}]}))
    assert names(ring(path, "two"), "one", "two", "three", "") == ["a", "default", None, None]


@pytest.mark.parametrize("content", [None, b"keys = 3", b"\xff", b"#" * 1_000_001])
def test_a_bad_file_keeps_the_service_from_starting(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"TGQ_API_KEYS_FILE .*keys\.toml"):
        ring(path)


def test_a_file_that_changes_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.toml"

    def write(content: str) -> None:
        other = tmp_path / "new"
        other.write_text(content)
        other.replace(path)

    write('keys = [{name = "a", secret = "one"}]')
    keys = ring(path)
    caplog.set_level(logging.INFO)
    keys.refresh()
    assert caplog.messages == []
    write('keys = [{name = "b", secret = "two"}]')
    keys.refresh()
    assert names(keys, "one", "two") == [None, "b"]
    write('keys = [{name = "c", secret = "three"')
    keys.refresh()
    keys.refresh()
    path.unlink()
    keys.refresh()
    assert names(keys, "two", "three") == ["b", None]
    assert len([line for line in caplog.messages if "not right" in line]) == 2
    assert "three" not in caplog.text
    write('keys = [{name = "d", secret = "four"}]')
    keys.refresh()
    assert names(keys, "two", "four") == [None, "d"]
