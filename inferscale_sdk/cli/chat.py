"""``inferscale chat``: a conversation that is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from inferscale_sdk.cli.options import (
    DEFAULT_USER,
    BaseUrl,
    EngineChoice,
    EngineKind,
    Json,
    Store,
    User,
)
from inferscale_sdk.cli.output import err, interactive, working
from inferscale_sdk.cli.streams import open_stdin
from inferscale_sdk.cli.values import COUNT, MODEL_TO_LOAD, whole
from inferscale_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from inferscale_sdk.engines.base import Engine

__all__ = ["chat"]


def chat(
    user: User = DEFAULT_USER,
    base_url: BaseUrl = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model to start when no server is named.",
            show_default="bundled",
            **MODEL_TO_LOAD,
        ),
    ] = None,
    engine: EngineKind = EngineChoice.VLLM,
    store: Store = None,
    top_k: Annotated[
        int, typer.Option(help="Facts to recall per question.", **whole(1, COUNT))
    ] = 20,
    max_tokens: Annotated[
        int, typer.Option(help="Length of an answer at most.", **whole(1, COUNT))
    ] = 256,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show what was recalled and injected.")
    ] = False,
    json: Json = False,
) -> None:
    """Talk to a model that remembers, across runs. Lines piped into it are answered one by one.

    In the chat: /facts shows what is remembered, /forget ID forgets one fact, /forget all
    everything, /quit ends.
    """
    from inferscale_sdk.cli.chat_loop import ChatLoop, ChatSettings, JsonView, TextView
    from inferscale_sdk.cli.session import memory_folder
    from inferscale_sdk.memory import Memory

    stdin = open_stdin()
    asks = interactive() and not json
    with (
        _engine(base_url, model, engine) as answering,
        Memory(answering, path=memory_folder(store)) as memory,
    ):
        view = JsonView() if json else TextView(verbose=verbose)
        settings = ChatSettings(user_id=user, top_k=top_k, max_tokens=max_tokens)
        loop = ChatLoop(memory, view, settings)
        if asks:
            err().print("Type /quit to end, /help for what else there is.", style="dim")
        while (line := _read_line(None if asks else stdin)) is not None:
            if not loop.handle(line):
                break
    if loop.n_unanswered and not asks:
        raise typer.Exit(1)


def _engine(base_url: str | None, model: str | None, kind: EngineChoice) -> Engine:
    from inferscale_sdk.cli.session import base_url_or_none, connect, launch_engine

    if kind is EngineChoice.TRANSFORMERS:
        if base_url is not None:
            raise ConfigurationError(
                f"--base-url {base_url} is a server's and --engine transformers needs none; "
                "give one of the two"
            )
        with working(f"Loading {model or 'the bundled model'}"):
            return launch_engine(model, kind)
    url = base_url_or_none(base_url) if model is None else base_url
    if url is not None:
        return connect(url)
    with working(f"Starting {model or 'the bundled model'}"):
        return launch_engine(model)


def _read_line(piped: TextIO | None) -> str | None:
    """The next line, asked for where none is piped; ``None`` at the end."""
    if piped is not None:
        return piped.readline() or None
    try:
        return input("> ")
    except EOFError:
        return None
