"""Settings, validated once. The only module that reads environment variables."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from inferscale_sdk.errors import ConfigurationError

__all__ = ["Settings", "check_secret", "settings"]

_KV_KEY_BYTES = 32
_SECRET_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says.

    | field | variable | meaning |
    |---|---|---|
    | ``home`` | ``INFERSCALE_HOME`` | where stores, models and KV live |
    | ``server_python`` | ``INFERSCALE_SERVER_PYTHON`` | interpreter that has vLLM |
    | ``server_secret`` | ``INFERSCALE_SERVER_SECRET`` | shared secret with the server |
    | ``kv_key`` | ``INFERSCALE_KV_KEY`` | encrypts stored KV: 32 bytes in base64 |
    | ``remote_url`` | ``INFERSCALE_REMOTE_URL`` | the server's remote tier; may hold a password |
    | ``base_url`` | ``INFERSCALE_BASE_URL`` | a running server, e.g. ``http://127.0.0.1:8000`` |
    | ``api_key`` | ``INFERSCALE_API_KEY`` | sent as bearer token |
    | ``orphan_check_seconds`` | ``INFERSCALE_ORPHAN_CHECK_SECONDS`` | KV ledger check; 0: never |

    Raises:
        ConfigurationError: A variable has a value that cannot be used.
    """

    home: Path
    server_python: Path | None = None
    server_secret: bytes | None = field(default=None, repr=False)
    kv_key: bytes | None = field(default=None, repr=False)
    remote_url: str | None = field(default=None, repr=False)
    base_url: str | None = None
    api_key: str | None = None
    orphan_check_seconds: float = 3600.0

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read ``env``, by default the process's environment."""
        env = os.environ if env is None else env
        home = env.get("INFERSCALE_HOME")
        python = env.get("INFERSCALE_SERVER_PYTHON")
        if python and not Path(python).exists():
            raise ConfigurationError(
                f"INFERSCALE_SERVER_PYTHON={python!r} does not exist; "
                "give the path of a Python that has vLLM installed, or unset it"
            )
        secret = env.get("INFERSCALE_SERVER_SECRET")
        return cls(
            home=Path(home).expanduser() if home else _default_home(),
            server_python=Path(python) if python else None,
            server_secret=check_secret(secret, "INFERSCALE_SERVER_SECRET"),
            kv_key=_kv_key(env.get("INFERSCALE_KV_KEY")),
            remote_url=env.get("INFERSCALE_REMOTE_URL") or None,
            base_url=env.get("INFERSCALE_BASE_URL") or None,
            api_key=env.get("INFERSCALE_API_KEY") or None,
            orphan_check_seconds=_seconds(env, "INFERSCALE_ORPHAN_CHECK_SECONDS", 3600.0),
        )


def check_secret(secret: bytes | str | None, name: str) -> bytes | None:
    """A secret as bytes, if the environment of a server can hold it. Errors never quote it.

    Args:
        secret: What was given as ``name``; text stands for its UTF-8.
        name: Its name in the error message.

    Raises:
        ConfigurationError: It is neither bytes nor text, too short, or no UTF-8.
    """
    if secret is None:
        return None
    if not isinstance(secret, bytes | str):
        raise ConfigurationError(
            f"{name} is a {type(secret).__name__}; give text or bytes, "
            f"at least {_SECRET_CHARACTERS} characters"
        )
    try:
        text = secret if isinstance(secret, str) else secret.decode()
        data = text.encode()
    except UnicodeError:
        text, data = "\0", b""
    if "\0" in text:
        raise ConfigurationError(
            f"{name} cannot stand in a server's environment (no UTF-8 text, or a NUL in it); "
            "make one with: openssl rand -hex 32"
        )
    if len(text) < _SECRET_CHARACTERS:
        raise ConfigurationError(
            f"{name} has {len(text)} characters; use at least {_SECRET_CHARACTERS}, e.g. those of: "
            "openssl rand -hex 32"
        )
    return data


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigurationError(f"{name}={text!r} is not a number of seconds; 0 means never")
    return value


def _kv_key(text: str | None) -> bytes | None:
    """The key in it. Errors never quote it: it may be a good key with a typing error."""
    if not text:
        return None
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        key = b""
    if len(key) != _KV_KEY_BYTES:
        found = f"{len(key)} bytes in base64" if key else "no base64"
        raise ConfigurationError(
            f"INFERSCALE_KV_KEY must be {_KV_KEY_BYTES} bytes in base64, it is {found}; "
            "make one with: openssl rand -base64 32"
        )
    return key


def _default_home() -> Path:
    from platformdirs import user_data_path

    return user_data_path("inferscale")


@cache
def settings() -> Settings:
    """The process's settings, read once. Tests call ``settings.cache_clear()``."""
    return Settings.from_env()
