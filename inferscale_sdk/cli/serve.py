"""``inferscale serve``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from inferscale_sdk.cli.options import Json
from inferscale_sdk.cli.output import err, print_json

__all__ = ["serve"]

DEFAULT_PORT = 8000
_GIB, _MIB = 1 << 30, 1 << 20


class _Storage(StrEnum):
    AS_CACHE = "as_cache"
    FP8 = "fp8"
    INT8 = "int8"


class _Eviction(StrEnum):
    LRU = "lru"
    COST = "cost"


def serve(
    model: Annotated[str, typer.Argument(help="A model folder or name, or 'bundled'.")],
    extra: Annotated[
        list[str] | None, typer.Argument(help="Further vLLM arguments, after --.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = DEFAULT_PORT,
    name: Annotated[str | None, typer.Option(help="Name of the model in requests.")] = None,
    kv_path: Annotated[
        Path | None,
        typer.Option(help="Folder for stored KV.", show_default="under INFERSCALE_HOME"),
    ] = None,
    memory_only: Annotated[
        bool, typer.Option("--memory-only", help="Keep KV in memory, nothing on disk.")
    ] = False,
    host_gib: Annotated[
        float | None, typer.Option(help="Memory for stored KV, in GiB.", show_default="1")
    ] = None,
    device_gib: Annotated[
        float | None,
        typer.Option(help="GPU memory for stored KV used lately, in GiB.", show_default="none"),
    ] = None,
    disk_gib: Annotated[
        float | None, typer.Option(help="Disk for stored KV, in GiB.", show_default="no limit")
    ] = None,
    remote_url: Annotated[
        str | None,
        typer.Option(
            help="Redis, Valkey or an fsspec address for stored KV. With a password: set "
            "INFERSCALE_REMOTE_URL instead."
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
        typer.Option(help="What one user's KV may take in each tier, in MiB.", show_default="any"),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Context length in tokens.", show_default="the model's")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command instead of running it.")
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
        _print_command(argv, env, json)
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


def _print_command(argv: list[str], env: dict[str, str], json: bool) -> None:
    import shlex
    import sys

    secrets = ("INFERSCALE_SERVER_SECRET", "INFERSCALE_REMOTE_URL")
    shown = {key: value for key, value in env.items() if key not in secrets}
    if json:
        print_json({"argv": argv, "env": shown})
        return
    settings = "".join(f"{key}={shlex.quote(value)} " for key, value in sorted(shown.items()))
    sys.stdout.write(f"{settings}{shlex.join(argv)}\n")


def _exec(argv: list[str], env: dict[str, str]) -> None:
    import os

    from inferscale_sdk.errors import ConfigurationError

    err().print(f"Serving with {argv[0]}; stop it with Ctrl-C", markup=False)
    try:
        os.execve(argv[0], argv, {**os.environ, **env})  # noqa: S606 - a list, no shell
    except OSError as error:
        raise ConfigurationError(f"cannot run {argv[0]!r}: {error}") from error
