"""The tree of commands, and what becomes of errors."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from inferscale_sdk.cli import bench, chat, demo, doctor, kv, memory, serve, version
from inferscale_sdk.cli.output import print_error
from inferscale_sdk.cli.streams import clean_streams
from inferscale_sdk.errors import ConfigurationError, InferScaleError, NamespaceError

__all__ = ["app"]

EXIT_FAILED = 1
EXIT_SETUP = 2
EXIT_INTERRUPTED = 130


class _CleanErrors(TyperGroup):
    """Turns errors into one message on stderr and an exit code, without a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with clean_streams():
            return super().main(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InferScaleError as error:
            print_error(error)
            wrong_setup = isinstance(error, ConfigurationError | NamespaceError)
            raise typer.Exit(EXIT_SETUP if wrong_setup else EXIT_FAILED) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error


app = typer.Typer(
    cls=_CleanErrors,
    help="Attention-layer memory: facts are encoded once and injected into vLLM's KV cache.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.add_typer(memory.app, name="memory")
app.add_typer(kv.app, name="kv")
app.add_typer(bench.app, name="bench")
app.command("doctor")(doctor.doctor)
app.command("version")(version.version)
