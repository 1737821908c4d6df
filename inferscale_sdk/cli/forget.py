"""``inferscale memory forget``: deletion down to the last copy, and the proof of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferscale_sdk.cli.options import DEFAULT_USER, Agent, App, BaseUrl, Json, Run, Store, User
from inferscale_sdk.cli.output import err, interactive, out, print_json

if TYPE_CHECKING:
    from inferscale_sdk.engines.base import Engine
    from inferscale_sdk.memory import Memory
    from inferscale_sdk.memory.absence import Evidence, Place

__all__ = ["forget"]


def forget(
    fact_ids: Annotated[list[str] | None, typer.Argument(help="Which facts.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything of this user.")] = False,
    hard: Annotated[bool, typer.Option("--hard", help="Erase the text from history, too.")] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Prove that nothing is left; exit code 1 if something is."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    user: User = DEFAULT_USER,
    agent: Agent = None,
    run: Run = None,
    app_id: App = None,
    store: Store = None,
    base_url: BaseUrl = None,
    kv: Annotated[
        Path | None,
        typer.Option("--kv", help="Folder of stored KV.", show_default="under INFERSCALE_HOME"),
    ] = None,
    json: Json = False,
) -> None:
    """Forget facts: text, vectors, and stored KV, now where it can be reached."""
    from inferscale_sdk.cli.session import (
        base_url_or_none,
        connect,
        kv_folder,
        memory_folder,
        open_memory,
        owner_ids,
    )

    if bool(fact_ids) == everything:
        raise typer.BadParameter("name facts, or give --all, not both")
    if verify and not hard:
        raise typer.BadParameter(
            "--verify proves that nothing is left, but without --hard the text stays in the "
            "history; give both"
        )
    ids = owner_ids(user, agent, run, app_id)
    url = base_url_or_none(base_url)
    with ExitStack() as stack:
        engine = stack.enter_context(connect(url)) if url else None
        memory = stack.enter_context(open_memory(store))
        if everything and not yes:
            _confirm(f"Forget all {memory.count(**ids)} facts of {user}?")
        task = _Task(memory, ids, memory_folder(store), engine, kv or kv_folder())
        evidence = task.gather(fact_ids) if verify else None
        try:
            task.delete(fact_ids, hard=hard)
        finally:
            # Also before an error is shown: those before it are gone.
            task.drop_kv()
            places = task.look(evidence) if evidence is not None else None
            _show(task.n_gone, places, json)
    if places is not None and not _is_proved(places, asked=url is not None):
        raise typer.Exit(1)


@dataclass
class _Task:
    """Deleting, and what it needs."""

    memory: Memory
    ids: dict[str, Any]
    folder: Path
    engine: Engine | None
    kv: Path
    n_gone: int = 0

    def gather(self, fact_ids: Sequence[str] | None) -> Evidence:
        from inferscale_sdk.memory.absence import gather
        from inferscale_sdk.types import Namespace

        scope = Namespace(**self.ids)
        store = self.memory.store
        if fact_ids is None:
            fact_ids = [fact.id for fact in store.find(scope, include_deleted=True)]
        return gather(store, fact_ids, scope)

    def delete(self, fact_ids: Sequence[str] | None, *, hard: bool) -> None:
        """Delete, and count what is gone."""
        if fact_ids is None:
            self.n_gone = self.memory.delete_all(hard=hard, **self.ids)
            return
        for fact_id in fact_ids:
            self.memory.delete(fact_id, hard=hard, **self.ids)
            self.n_gone += 1

    def drop_kv(self) -> None:
        """Have the deleted facts' KV dropped in the folder, and by the server if there is one."""
        from inferscale_sdk.errors import EngineError, StoreError
        from inferscale_sdk.ingest.forgetting import send_forgets
        from inferscale_sdk.tiers.folder import remove

        try:
            for key in self.memory.store.forget_queue(1_000_000):
                remove(self.kv, key)
            if self.engine is not None:
                send_forgets(self.memory.store, self.engine)
        except (EngineError, StoreError) as error:
            err().print(f"stored KV is dropped later: {error}", markup=False)

    def look(self, evidence: Evidence) -> list[Place]:
        from inferscale_sdk.memory.absence import look

        return look(
            evidence,
            self.memory.store,
            path=self.folder,
            engine=self.engine,
            kv_folder=self.kv if self.kv.is_dir() else None,
        )


def _is_proved(places: Sequence[Place], *, asked: bool) -> bool:
    """Nothing is left; and where a server was named, it could be asked."""
    return not any(place.left or (asked and not place.checked) for place in places)


def _confirm(question: str) -> None:
    """Ask on stderr; ends the command if the answer is no, or nobody is there to give one."""
    if not interactive():
        raise typer.BadParameter(f"{question} Nobody is there to answer; give --yes")
    typer.confirm(question, abort=True, err=True)


def _show(n: int, places: Sequence[Place] | None, json: bool) -> None:
    if json:
        found: dict[str, Any] = {"forgotten": n}
        if places is not None:
            found["left"] = sum(place.left for place in places)
            found["places"] = [asdict(place) for place in places]
        print_json(found)
        return
    out().print(f"forgotten: {n}")
    if places is None:
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("place", "left", "", title="what is left", title_justify="left")
    for place in places:
        left = str(place.left) if place.checked else "not asked"
        table.add_row(escape(place.name), left, escape(place.note))
    out().print(table)
