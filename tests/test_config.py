"""Settings: what the environment may say, and what is said about what it may not."""

from __future__ import annotations

import base64

import pytest

from inferscale_sdk.config import Settings, check_secret
from inferscale_sdk.errors import ConfigurationError

KEY = bytes(range(32))


def kv_key(text: str) -> bytes | None:
    return Settings.from_env({"INFERSCALE_KV_KEY": text}).kv_key


def test_the_key_for_stored_kv_is_32_bytes_in_base64() -> None:
    assert kv_key(base64.b64encode(KEY).decode()) == KEY
    assert kv_key(f" {base64.b64encode(KEY).decode()}\n") == KEY
    assert kv_key("") is None
    assert Settings.from_env({}).kv_key is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (base64.b64encode(KEY[:16]).decode(), "16 bytes in base64"),
        (base64.b64encode(KEY + b"x").decode(), "33 bytes in base64"),
        ("not base64 at all!", "no base64"),
        ("äöü", "no base64"),
        (KEY.hex(), "48 bytes in base64"),
    ],
)
def test_a_key_of_another_form_is_refused_without_quoting_it(text: str, found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"it is {found}; make one with") as caught:
        kv_key(text)
    assert text not in str(caught.value)


UNUSABLE_SECRETS = [
    ("", "has 0 characters; use at least 16"),
    ("opensesame", "has 10 characters; use at least 16"),
    (b"opensesame", "has 10 characters; use at least 16"),
    (b"opensesame \xff\xff\xff\xff\xff\xff", "no UTF-8 text"),
    ("opensesame \udcff\udcff\udcff\udcff\udcff", "no UTF-8 text"),
    ("opensesame, opensesame\0", "a NUL in it"),
    (["opensesame"], "is a list; give text or bytes"),
]


@pytest.mark.parametrize(("secret", "told"), UNUSABLE_SECRETS)
def test_a_secret_that_cannot_be_used_is_refused_without_quoting_it(secret, told) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        check_secret(secret, "secret")
    assert str(caught.value).startswith("secret ")
    assert "sesame" not in str(caught.value)


def test_a_secret_of_text_is_its_utf_8() -> None:
    assert check_secret("sixteen letters é", "secret") == "sixteen letters é".encode()
    assert check_secret(b"0123456789abcdef", "secret") == b"0123456789abcdef"
    assert check_secret(None, "secret") is None


def test_secrets_are_not_shown() -> None:
    shown = repr(
        Settings.from_env(
            {
                "INFERSCALE_KV_KEY": base64.b64encode(KEY).decode(),
                "INFERSCALE_SERVER_SECRET": "correct horse battery staple",
            }
        )
    )
    assert "horse" not in shown
    assert repr(KEY) not in shown
