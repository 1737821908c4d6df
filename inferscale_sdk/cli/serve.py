"""``inferscale serve``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from inferscale_sdk.cli.options import Json
from inferscale_sdk.cli.output import err, print_json
from inferscale_sdk.cli.values import (
    COUNT,
    LONG_COUNT,
    MODEL_TO_LOAD,
    folder_to_make,
    number,
    remote_address,
    remote_address_in,
    whole,
)

__all__ = ["serve"]

DEFAULT_PORT = 8000
_GIB, _MIB = 1 << 30, 1 << 20
# The least is what the connector takes: 1 MiB for a tier, 1 KiB for an owner.
_SIZE = number(0.001, COUNT)
_MASK = "***"


class _Storage(StrEnum):
    AS_CACHE = "as_cache"
    FP8 = "fp8"
    INT8 = "int8"


class _Eviction(StrEnum):
    LRU = "lru"
    COST = "cost"


def serve(
    model: Annotated[
        str,
        typer.Argument(help="A model folder or name, or 'bundled'.", **MODEL_TO_LOAD),
    ],
    extra: Annotated[
        list[str] | None, typer.Argument(help="Further vLLM arguments, after --.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on.", **whole(1, 65_535))
    ] = DEFAULT_PORT,
    name: Annotated[str | None, typer.Option(help="Name of the model in requests.")] = None,
    kv_path: Annotated[
        Path | None,
        typer.Option(
            help="Folder for stored KV.",
            show_default="under INFERSCALE_HOME",
            parser=folder_to_make,
            metavar="FOLDER",
        ),
    ] = None,
    memory_only: Annotated[
        bool, typer.Option("--memory-only", help="Keep KV in memory, nothing on disk.")
    ] = False,
    host_gib: Annotated[
        float | None,
        typer.Option(help="Memory for stored KV, in GiB.", show_default="1", **_SIZE),
    ] = None,
    device_gib: Annotated[
        float | None,
        typer.Option(
            help="GPU memory for stored KV used lately, in GiB.", show_default="none", **_SIZE
        ),
    ] = None,
    disk_gib: Annotated[
        float | None,
        typer.Option(help="Disk for stored KV, in GiB.", show_default="no limit", **_SIZE),
    ] = None,
    remote_url: Annotated[
        str | None,
        typer.Option(
            help="Redis, Valkey or an fsspec address for stored KV. With a password: set "
            "INFERSCALE_REMOTE_URL instead.",
            parser=remote_address,
            metavar="URL",
        ),
    ] = None,
    storage_dtype: Annotated[
        _Storage, typer.Option(help="How disk and remote keep KV.")
    ] = _Storage.AS_CACHE,
    eviction: Annotated[
        _Eviction,
        typer.Option(help="Who goes first in a full tier: used longest ago, or cheapest to have."),
    ] = _Eviction.LRU,
    owner_mib: Annotated[
        float | None,
        typer.Option(
            help="What one user's KV may take in each tier, in MiB.",
            show_default="any",
            **number(0.001, LONG_COUNT),
        ),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Context length in tokens.",
            show_default="the model's",
            **whole(1, LONG_COUNT),
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the command and its environment instead of running it."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Serve a model with vLLM and attention-layer memory. Replaces this process.

    The server's interpreter is INFERSCALE_SERVER_PYTHON, this one if it has vLLM, or .venv-vllm
    beside this environment. A shared secret is taken from INFERSCALE_SERVER_SECRET. With a key in
    INFERSCALE_KV_KEY (32 bytes in base64), KV on disk and remote is encrypted.
    """
    from inferscale_sdk.cli.session import kv_folder
    from inferscale_sdk.config import settings
    from inferscale_sdk.server import find_server_python, server_command

    inherited = _inherited()
    path, served_name = _model(model)
    argv, env = server_command(
        path,
        python=find_server_python(),
        port=port,
        host=host,
        served_model_name=name or served_name,
        max_model_len=max_model_len,
        host_bytes=_bytes(host_gib, _GIB),
        disk_path=None if memory_only else (kv_path or kv_folder()),
        connector_config=_tiers(
            device_bytes=_bytes(device_gib, _GIB),
            disk_bytes=_bytes(disk_gib, _GIB),
            remote_url=remote_url,
            storage_dtype=storage_dtype.value,
            eviction=eviction.value,
            owner_bytes=_bytes(owner_mib, _MIB),
        ),
        secret=settings().server_secret,
        extra=extra or [],
    )
    if dry_run or json:
        _print_command(argv, {**inherited, **env}, json)
        return
    _exec(argv, env)


def _bytes(number: float | None, unit: int) -> int | None:
    return None if number is None else round(number * unit)


def _tiers(**wanted: str | int | None) -> dict[str, str | int]:
    """Entries of the connector's configuration that say something."""
    usual = {"storage_dtype": _Storage.AS_CACHE.value, "eviction": _Eviction.LRU.value}
    return {k: v for k, v in wanted.items() if v is not None and usual.get(k) != v}


def _model(model: str) -> tuple[str | Path, str | None]:
    if model != "bundled":
        return model, None
    from inferscale_sdk.models import BUNDLED_MODEL, bundled_model_path

    return bundled_model_path(lambda what: err().print(what, markup=False)), BUNDLED_MODEL


def _inherited() -> dict[str, str]:
    """What the server reads of this process's environment, and gets without being handed it.

    Raises:
        ConfigurationError: The remote tier's address is none.
    """
    from inferscale_sdk.config import settings

    now, found = settings(), {}
    if now.kv_key is not None:
        found["INFERSCALE_KV_KEY"] = _MASK
    if now.remote_url is not None:
        found["INFERSCALE_REMOTE_URL"] = remote_address_in("INFERSCALE_REMOTE_URL", now.remote_url)
    return found


def _print_command(argv: list[str], env: dict[str, str], json: bool) -> None:
    import shlex
    import sys

    shown = {key: _without_secrets(key, value) for key, value in env.items()}
    masked = sorted(key for key in env if shown[key] == _MASK or shown[key] != env[key])
    if json:
        print_json({"argv": argv, "env": shown, "masked": masked})
        return
    settings = "".join(f"{key}={shlex.quote(value)} " for key, value in sorted(shown.items()))
    sys.stdout.write(f"{settings}{shlex.join(argv)}\n")
    if masked:
        err().print(
            f"without passwords and secrets: {', '.join(masked)}; "
            "put in their values before you run this",
            markup=False,
        )


def _without_secrets(name: str, value: str) -> str:
    from inferscale_sdk.tiers.remote_base import safe_url

    if name == "INFERSCALE_REMOTE_URL":
        return safe_url(value)
    return _MASK if name in ("INFERSCALE_KV_KEY", "INFERSCALE_SERVER_SECRET") else value


def _exec(argv: list[str], env: dict[str, str]) -> None:
    import os

    from inferscale_sdk.errors import ConfigurationError

    err().print(f"Serving with {argv[0]}; stop it with Ctrl-C", markup=False)
    try:
        os.execve(argv[0], argv, {**os.environ, **env})  # noqa: S606 - a list, no shell
    except OSError as error:
        raise ConfigurationError(f"cannot run {argv[0]!r}: {error}") from error
