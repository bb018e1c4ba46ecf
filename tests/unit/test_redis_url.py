"""Redis URLs, read once for everything that connects."""

from __future__ import annotations

from typing import Any

import pytest

from common.redis_url import RedisAddress

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("redis://h", {"hosts": (("h", 6379),), "db": 0, "tls": None, "username": None, "password": None}),
        ("redis://u:p%40%2F@h:1/3", {"hosts": (("h", 1),), "db": 3, "username": "u", "password": "p@/"}),
        ("redis://:p@[::1]:1", {"hosts": (("::1", 1),), "username": None, "password": "p"}),
        ("redis://h/1?db=2&username=u&password=p%25", {"db": 2, "username": "u", "password": "p%"}),
        ("rediss://h", {"hosts": (("h", 6379),), "tls": {"ssl_cert_reqs": "required"}}),
        (
            "rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=no&ssl_min_version=772&ssl_cert_reqs=optional",
            {
                "tls": {
                    "ssl_ca_certs": "/ca.pem",
                    "ssl_check_hostname": False,
                    "ssl_min_version": 772,
                    "ssl_cert_reqs": "optional",
                }
            },
        ),
        ("unix:///run/my%20redis.sock?db=4", {"hosts": (), "path": "/run/my redis.sock", "db": 4}),
        ("unix://u:p@/redis.sock", {"path": "/redis.sock", "username": "u", "password": "p", "db": 0}),
        (
            "sentinel://u:p@a:1,[::2],c/5?master_name=m&sentinel_username=su&sentinel_password=sp",
            {
                "hosts": (("a", 1), ("::2", 26379), ("c", 26379)),
                "db": 5,
                "username": "u",
                "password": "p",
                "master_name": "m",
                "sentinel_username": "su",
                "sentinel_password": "sp",
                "tls": None,
            },
        ),
        (
            "sentinel://a?master_name=m&ssl=true&ssl_cert_reqs=none",
            {"hosts": (("a", 26379),), "tls": {"ssl_cert_reqs": "none"}},
        ),
    ],
)
def test_says_where_and_how(url: str, fields: dict[str, Any]) -> None:
    address = RedisAddress.parse(url)
    assert {name: getattr(address, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"amqp://u:{SECRET}@h", "must start with redis://"),
        (f"redis+cluster://:{SECRET}@h", "must start with redis://"),
        (f"redis://u:{SECRET}", "redis://.*%23"),
        (f"redis://u:a#{SECRET}@h", "redis://.*%23"),
        (f"redis://u:a?{SECRET}@h", "knows no options but db"),
        (f"redis://u:{SECRET}@h:0", "host:port"),
        (f"redis://u:{SECRET}@h:66000", "host:port"),
        (f"redis://u:{SECRET}@a:1,b:2", "host:port"),
        (f"redis://u:{SECRET}@h/zero", "number of a database"),
        (f"redis://u:{SECRET}@h?socket_timeout=5", "time limits are settings"),
        (f"redis://u:{SECRET}@h?ssl_cert_reqs=none", "knows no options"),
        (f"rediss://u:{SECRET}@h?ssl_cert_reqs=maybe", "required, optional or none"),
        (f"rediss://u:{SECRET}@h?ssl_check_hostname=maybe", "true or false as ssl_check_hostname"),
        (f"rediss://u:{SECRET}@h?ssl_min_version=TLS", "772 is TLS 1.3"),
        (f"unix://u:{SECRET}@h/path", "whole path"),
        (f"unix://:{SECRET}@", "whole path"),
        (f"sentinel://:{SECRET}@a:1/0", "master_name"),
        (f"sentinel://:{SECRET}@a:1,,b/0?master_name=m", "host:port"),
        (f"sentinel://:{SECRET}@a?master_name=m&ssl_ca_certs=/ca", "ssl=true"),
        ("redis://[broken", "host:port"),
    ],
)
def test_refuses_what_it_cannot_carry_out_and_shows_no_secret(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        RedisAddress.parse(url)
    assert SECRET not in str(caught.value)


def test_its_text_form_shows_no_secret() -> None:
    assert SECRET not in repr(RedisAddress.parse(f"redis://:{SECRET}@h"))
