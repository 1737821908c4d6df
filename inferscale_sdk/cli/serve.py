"""``inferscale serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferscale_sdk.cli.options import Json
from inferscale_sdk.cli.output import err, print_json

__all__ = ["serve"]

DEFAULT_PORT = 8000
_GIB = 1 << 30


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
    beside this environment. A shared secret is taken from INFERSCALE_SERVER_SECRET.
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
        host_bytes=None if host_gib is None else round(host_gib * _GIB),
        disk_path=None if memory_only else (kv_path or kv_folder()),
        secret=settings().server_secret,
        extra=extra or [],
    )
    if dry_run or json:
        _print_command(argv, env, json)
        return
    _exec(argv, env)


def _model(model: str) -> tuple[str | Path, str | None]:
    if model != "bundled":
        return model, None
    from inferscale_sdk.models import BUNDLED_MODEL, bundled_model_path

    return bundled_model_path(lambda what: err().print(what, markup=False)), BUNDLED_MODEL


def _print_command(argv: list[str], env: dict[str, str], json: bool) -> None:
    import shlex
    import sys

    shown = {key: value for key, value in env.items() if key != "INFERSCALE_SERVER_SECRET"}
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
