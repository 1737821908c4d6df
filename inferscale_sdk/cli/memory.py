"""``inferscale memory``: what is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferscale_sdk.cli.forget import forget
from inferscale_sdk.cli.options import (
    DEFAULT_USER,
    Agent,
    App,
    Json,
    Run,
    Store,
    StoreThere,
    User,
)
from inferscale_sdk.cli.output import (
    err,
    one_line,
    out,
    print_figures,
    print_json,
    print_json_line,
    working,
)
from inferscale_sdk.cli.session import open_memory, owner_ids, reading
from inferscale_sdk.cli.streams import open_stdin, undecoded
from inferscale_sdk.cli.values import COUNT, LONG_COUNT, number, whole

if TYPE_CHECKING:
    from inferscale_sdk.types import Fact

__all__ = ["app"]

app = typer.Typer(
    help="What is remembered: add, list, search, forget, export.", no_args_is_help=True
)

app.command()(forget)

FactId = Annotated[str, typer.Argument(help="A fact's id, as `list` shows it.")]


@app.command()
def add(
    texts: Annotated[list[str], typer.Argument(help="What to remember; - reads lines from stdin.")],
    user: User = DEFAULT_USER,
    agent: Agent = None,
    run: Run = None,
    app_id: App = None,
    speaker: Annotated[str | None, typer.Option(help="Who said it.")] = None,
    when: Annotated[
        datetime | None, typer.Option(help="When it was said or happened (UTC).")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Remember statements. They are encoded when an engine next runs on this memory."""
    from inferscale_sdk.types import Message

    messages = [Message("user", line, speaker) for line in _lines(texts)]
    with open_memory(store) as memory:
        facts = memory.add(messages, timestamp=_utc(when), **owner_ids(user, agent, run, app_id))
    _show(facts, json)


@app.command("list")
def list_(
    user: User = DEFAULT_USER,
    agent: Agent = None,
    run: Run = None,
    app_id: App = None,
    limit: Annotated[
        int | None, typer.Option(help="At most so many.", **whole(0, LONG_COUNT))
    ] = None,
    offset: Annotated[
        int, typer.Option(help="Leave out the first ones.", **whole(0, LONG_COUNT))
    ] = 0,
    store: StoreThere = None,
    json: Json = False,
) -> None:
    """List facts, oldest first."""
    with reading(store) as memory:
        facts = memory.get_all(limit=limit, offset=offset, **owner_ids(user, agent, run, app_id))
    _show(facts, json)


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="A question, or any text.")],
    user: User = DEFAULT_USER,
    agent: Agent = None,
    run: Run = None,
    app_id: App = None,
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", help="At most so many.", **whole(1, COUNT))
    ] = 10,
    threshold: Annotated[
        float | None, typer.Option(help="Least cosine similarity.", **number(-1, 1))
    ] = None,
    store: StoreThere = None,
    json: Json = False,
) -> None:
    """Find the facts that matter for a question, best first."""
    from inferscale_sdk.cli.facts import fact_dict

    if not query.strip():
        raise typer.BadParameter("it is empty; give a question, or any text", param_hint="'QUERY'")

    with reading(store) as memory, working("Searching"):
        found = memory.search(
            query, top_k=top_k, threshold=threshold, **owner_ids(user, agent, run, app_id)
        )
    if json:
        print_json(
            [
                {**fact_dict(hit.fact), "score": hit.score, "similarity": hit.similarity}
                for hit in found
            ]
        )
        return
    for hit in found:
        similarity = "  -  " if hit.similarity is None else f"{hit.similarity:.3f}"
        out().print(f"{similarity}  {hit.fact.id}  {_line(hit.fact)}", markup=False)


@app.command()
def export(
    user: User = DEFAULT_USER,
    agent: Agent = None,
    run: Run = None,
    app_id: App = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file.", show_default="stdout")
    ] = None,
    store: StoreThere = None,
    json: Annotated[bool, typer.Option("--json", help="One document instead of lines.")] = False,
) -> None:
    """Write all facts as JSON, one a line."""
    from inferscale_sdk.cli.facts import fact_dict

    with reading(store) as memory:
        facts = [fact_dict(fact) for fact in memory.get_all(**owner_ids(user, agent, run, app_id))]
    with _writing_to(output):
        if json:
            print_json(facts)
        else:
            for fact in facts:
                print_json_line(fact)
    if output is not None:
        err().print(f"{len(facts)} facts written to {output}", markup=False)


@app.command()
def history(
    fact_id: FactId,
    user: User = DEFAULT_USER,
    agent: Agent = None,
    run: Run = None,
    app_id: App = None,
    store: StoreThere = None,
    json: Json = False,
) -> None:
    """Show what happened to a fact, oldest first; works on forgotten ones."""
    with reading(store) as memory:
        events = memory.history(fact_id, **owner_ids(user, agent, run, app_id))
    if json:
        print_json([{**asdict(event), "kind": event.kind.value} for event in events])
        return
    for event in events:
        text = one_line(event.new_text or event.old_text or "")
        out().print(
            f"{event.at:%Y-%m-%d %H:%M}  {event.kind.value:<6}  v{event.version}  {text}",
            markup=False,
        )


@app.command()
def stats(
    user: User = DEFAULT_USER,
    agent: Agent = None,
    run: Run = None,
    app_id: App = None,
    store: StoreThere = None,
    json: Json = False,
) -> None:
    """Show how much is remembered, and what still waits."""
    from inferscale_sdk.cli.session import memory_folder

    with reading(store) as memory:
        now = memory.stats()
        about: dict[str, Any] = {
            "folder": str(memory_folder(store)),
            "user": user,
            "facts": memory.count(**owner_ids(user, agent, run, app_id)),
            "changes": now.last_seq,
            "keys_to_forget": now.forgets_queued,
        }
    if json:
        print_json(about)
        return
    print_figures(about)


def _lines(texts: list[str]) -> list[str]:
    """What to remember, line by line; blank lines of stdin are none."""
    if any(not text.strip() for text in texts):
        raise typer.BadParameter("it is empty; give a statement", param_hint="'TEXTS'")
    given = [line for text in texts for line in (_piped() if text == "-" else [text])]
    lines = [line.strip() for line in given if line.strip()]
    if not lines:
        raise typer.BadParameter("stdin has no text; pipe lines into it", param_hint="'-'")
    return lines


def _piped() -> Iterator[str]:
    stdin = open_stdin()
    for at, line in enumerate(stdin, 1):
        if undecoded(line):
            raise typer.BadParameter(
                f"line {at} of stdin is not {stdin.encoding}; convert it, e.g. with iconv",
                param_hint="'-'",
            )
        yield line


def _utc(when: datetime | None) -> datetime | None:
    from datetime import UTC

    return when.replace(tzinfo=UTC) if when is not None and when.tzinfo is None else when


def _show(facts: list[Fact], json: bool) -> None:
    from inferscale_sdk.cli.facts import fact_dict

    if json:
        print_json([fact_dict(fact) for fact in facts])
        return
    for fact in facts:
        out().print(f"{fact.id}  {_line(fact)}", markup=False)


def _line(fact: Fact) -> str:
    date = f"{fact.event_time:%Y-%m-%d} " if fact.event_time else ""
    speaker = f"{fact.speaker}: " if fact.speaker else ""
    source = f" (from {fact.source})" if fact.source else ""
    return one_line(f"{date}{speaker}{fact.text}{source}")


@contextmanager
def _writing_to(output: Path | None) -> Iterator[None]:
    """Send stdout to a new private file; an existing one is left alone."""
    import os
    from contextlib import redirect_stdout

    from inferscale_sdk.errors import ConfigurationError

    if output is None:
        yield
        return
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write a new file {output}: {error}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file, redirect_stdout(file):
        yield
