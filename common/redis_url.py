"""What a Redis URL says: where the server is, who we are there, and how the way is protected.

    redis://[user:password@]host[:port][/db]
    rediss://...                                        TLS; options `ssl_...` as in redis-py
    unix://[user:password@]/path/to/socket[?db=1]
    sentinel://[user:password@]host[:port][,host[:port]...][/db]?master_name=name
                                                        `sentinel_username`, `sentinel_password` for the Sentinels
                                                        themselves, `ssl=true` for TLS to them and to the servers

`#`, `/`, `?` and `@` in names and passwords are written `%23`, `%2F`, `%3F`, `%40`. Nothing of this imports redis-py, so that
settings stay quick to load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

REDIS_PORT = 6379
SENTINEL_PORT = 26379

_TLS_OPTIONS = (
    "ssl_cert_reqs",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_check_hostname",
    "ssl_min_version",
)
_OPTIONS = {
    "redis": ("db", "username", "password"),
    "rediss": ("db", "username", "password", *_TLS_OPTIONS),
    "unix": ("db", "username", "password"),
    "sentinel": ("db", "master_name", "sentinel_username", "sentinel_password", "ssl", *_TLS_OPTIONS),
}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RedisAddress:
    """A parsed Redis URL. Its text form is never shown: it holds passwords."""

    hosts: tuple[tuple[str, int], ...] = ()
    """The server, or the Sentinels when there is a `master_name`; empty for a socket."""
    path: str | None = None
    """The server's socket on this machine."""
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: Mapping[str, Any] | None = None
    """redis-py's `ssl_...` arguments; None is no TLS. Certificates are checked unless `ssl_cert_reqs` says otherwise."""
    master_name: str | None = None
    """What the Sentinels call the server."""
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Read a URL.

        Raises:
            ValueError: says what is wrong, without a word of the URL itself, which may hold passwords.
        """
        try:
            parts = urlsplit(url)
        except ValueError:
            raise _unreadable() from None
        scheme = parts.scheme
        if scheme not in _OPTIONS:
            raise ValueError("must start with redis://, rediss://, unix:// or sentinel://")
        if parts.fragment:
            raise _unreadable()
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if not options.keys() <= set(_OPTIONS[scheme]):
            raise ValueError(
                f"{scheme}:// knows no options but {', '.join(_OPTIONS[scheme])}; time limits are settings of their own"
            )
        credentials, _, place = parts.netloc.rpartition("@")
        username, _, password = credentials.partition(":")
        hosts, path = _place(scheme, place, parts.path)
        if scheme == "sentinel" and not options.get("master_name"):
            raise ValueError("must name its master, as in sentinel://host:26379/0?master_name=mymaster")
        encrypted = scheme == "rediss" or _boolean("ssl", options.get("ssl", "false"))
        if not encrypted and any(name in _TLS_OPTIONS for name in options):
            raise ValueError("has ssl_ options without TLS; add ssl=true")
        return cls(
            hosts=hosts,
            path=path,
            db=_database(options.get("db") or ("" if path else parts.path.removeprefix("/"))),
            username=options.get("username") or unquote(username) or None,
            password=options.get("password") or unquote(password) or None,
            tls=_tls(options) if encrypted else None,
            master_name=options.get("master_name"),
            sentinel_username=options.get("sentinel_username") or None,
            sentinel_password=options.get("sentinel_password") or None,
        )


def with_password(url: str, password: str) -> str:
    """A URL that has no password, with this one."""
    parts = urlsplit(url)
    username, _, place = parts.netloc.rpartition("@")
    credentials = f"{username.removesuffix(':')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{credentials}@{place}"))


def _place(scheme: str, place: str, path: str) -> tuple[tuple[tuple[str, int], ...], str | None]:
    """Hosts with their ports, or the path of a socket."""
    if scheme == "unix":
        if place or path in ("", "/"):
            raise ValueError("must name a socket by its whole path, as in unix:///run/redis.sock?db=0")
        return (), unquote(path)
    if scheme == "sentinel":
        return tuple(_host(part, SENTINEL_PORT) for part in place.split(",")), None
    return (_host(place, REDIS_PORT),), None


def _host(text: str, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _unreadable() from None
    if not host or port == 0 or parts.username is not None or "," in text:
        raise _unreadable()
    return unquote(host), port or default_port


def _database(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise ValueError("must end with the number of a database, as in redis://host:6379/0")
    return int(text)


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    tls: dict[str, Any] = {name: options[name] for name in _TLS_OPTIONS if name in options}
    # Left out, kombu would check no certificate at all.
    if tls.setdefault("ssl_cert_reqs", "required") not in ("required", "optional", "none"):
        raise ValueError("must have required, optional or none as ssl_cert_reqs")
    if "ssl_check_hostname" in tls:
        tls["ssl_check_hostname"] = _boolean("ssl_check_hostname", tls["ssl_check_hostname"])
    if "ssl_min_version" in tls:
        if not tls["ssl_min_version"].isdigit():
            raise ValueError("must have a number as ssl_min_version: 771 is TLS 1.2, 772 is TLS 1.3")
        tls["ssl_min_version"] = int(tls["ssl_min_version"])
    return tls


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in _YES + _NO:
        raise ValueError(f"must have true or false as {name}")
    return text.lower() in _YES


def _unreadable() -> ValueError:
    return ValueError(
        "must be redis://[user:password@]host:port/db; write `#`, `/`, `?`, `@` of a password as %23, %2F, %3F, %40"
    )
