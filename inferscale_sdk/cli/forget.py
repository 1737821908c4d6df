"""``inferscale memory forget``: deletion down to the last copy, and the proof of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inferscale_sdk.cli.options import (
    DEFAULT_USER,
    Agent,
    App,
    BaseUrl,
    Json,
    Run,
    StoreThere,
    User,
)
from inferscale_sdk.cli.output import err, interactive, out, print_json
from inferscale_sdk.cli.values import existing_folder

if TYPE_CHECKING:
    from inferscale_sdk.engines.base import Engine
    from inferscale_sdk.memory import Memory
    from inferscale_sdk.memory.absence import Evidence, Place, Whereabouts

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
    store: StoreThere = None,
    base_url: BaseUrl = None,
    kv: Annotated[
        Path | None,
        typer.Option(
            "--kv",
            help="Folder of stored KV.",
            show_default="under INFERSCALE_HOME",
            parser=existing_folder,
            metavar="FOLDER",
        ),
    ] = None,
    no_server: Annotated[
        bool,
        typer.Option("--no-server", help="No server works on that KV, nor a remote store with it."),
    ] = False,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing", help="KV that lies nowhere was evicted, and needs no other place."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Forget facts: text, vectors, and stored KV, now where it can be reached."""
    from inferscale_sdk.cli.session import (
        base_url_or_none,
        connect,
        kv_folder,
        memory_there,
        open_memory,
        owner_ids,
    )

    if bool(fact_ids) == everything:
        raise typer.BadParameter("name facts, or give --all" + (", not both" if everything else ""))
    if verify and not hard:
        raise typer.BadParameter(
            "--verify proves that nothing is left, but without --hard the text stays in the "
            "history; give both"
        )
    if (no_server or allow_missing) and not verify:
        raise typer.BadParameter("--no-server and --allow-missing say what --verify may go by")
    folder = memory_there(store)
    ids = owner_ids(user, agent, run, app_id)
    url = base_url_or_none(base_url)
    if no_server and url:
        raise typer.BadParameter(f"--no-server, and a server at {url}; which is it?")
    with ExitStack() as stack:
        engine = stack.enter_context(connect(url)) if url else None
        memory = stack.enter_context(open_memory(folder))
        if everything and not yes:
            _confirm(f"Forget all {memory.count(**ids)} facts of {user}?")
        task = _Task(memory, ids, folder, engine, kv or kv_folder(), no_server, allow_missing)
        if verify:
            task.gather(fact_ids)
            if why := task.cannot_prove():
                _show(0, _Proof((), why), json)
                raise typer.Exit(1)
        try:
            task.delete(fact_ids, hard=hard)
        finally:
            # Also before an error is shown: those before it are gone.
            task.drop_kv()
            proof = task.proof()
            _show(task.n_gone, proof, json)
    if proof is not None and not proof.holds:
        raise typer.Exit(1)


@dataclass
class _Task:
    """Deleting, and what it needs."""

    memory: Memory
    ids: dict[str, Any]
    folder: Path
    engine: Engine | None
    kv: Path
    no_server: bool
    allow_missing: bool
    n_gone: int = 0
    evidence: Evidence | None = None
    elsewhere: bool = False
    drop_failed: bool = False

    @property
    def where(self) -> Whereabouts:
        """KV may lie."""
        from inferscale_sdk.memory.absence import Whereabouts

        return Whereabouts(self.engine, self.kv if self.kv.is_dir() else None)

    def gather(self, fact_ids: Sequence[str] | None) -> None:
        """Write down what must be gone."""
        from inferscale_sdk.memory.absence import gather
        from inferscale_sdk.types import Namespace

        scope = Namespace(**self.ids)
        store = self.memory.store
        if fact_ids is None:
            fact_ids = [fact.id for fact in store.find(scope, include_deleted=True)]
        self.evidence = gather(store, fact_ids, scope)

    def cannot_prove(self) -> str:
        """Why the places named are not those where the facts' KV lies; empty if they are."""
        from inferscale_sdk.errors import EngineError

        assert self.evidence is not None
        if self.allow_missing or not (self.engine or self.no_server):
            return ""
        recorded = self.evidence.recorded
        try:
            if self.evidence.keys and not recorded:
                self.elsewhere = not self.where.has_kv_of(self.memory.store)
            found = self.where.found(recorded)
        except EngineError:
            return ""  # it will be said of the server
        if len(found) == len(recorded):
            return ""
        return (
            f"{len(recorded) - len(found)} of {len(recorded)} segments of these facts lie in none "
            "of the places asked, so nothing was forgotten; name the server that has them with "
            "--base-url and its folder with --kv, or give --allow-missing if they were evicted, or "
            "kept in memory only by a server that has ended"
        )

    def delete(self, fact_ids: Sequence[str] | None, *, hard: bool) -> None:
        """Delete, and count what is gone."""
        if fact_ids is None:
            self.n_gone = self.memory.delete_all(hard=hard, **self.ids)
            return
        erased = self.evidence.erased if self.evidence is not None else frozenset()
        for fact_id in fact_ids:
            if fact_id in erased:
                continue
            self.memory.delete(fact_id, hard=hard, **self.ids)
            self.n_gone += 1

    def drop_kv(self) -> None:
        """Have the deleted facts' KV dropped in the folder, and by the server if there is one."""
        from inferscale_sdk.errors import EngineError, StoreError
        from inferscale_sdk.ingest.forgetting import send_forgets
        from inferscale_sdk.tiers.folder import remove

        store = self.memory.store
        try:
            keys = store.forget_queue(1_000_000)
            remove(self.kv, keys)
            if self.no_server:
                store.forget_done(keys)
        except StoreError as error:
            self._failed(error)
        if self.engine is not None:
            try:
                send_forgets(store, self.engine)
            except (EngineError, StoreError) as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.drop_failed = True
        err().print(f"stored KV is dropped later: {error}", markup=False)

    def proof(self) -> _Proof | None:
        """Look into every place, if a proof is wanted."""
        from inferscale_sdk.memory.absence import look

        if self.evidence is None:
            return None
        places = look(
            self.evidence,
            self.memory.store,
            path=self.folder,
            where=self.where,
            no_server=self.no_server,
        )
        return _Proof(places, self._doubt(places))

    def _doubt(self, places: Sequence[Place]) -> str:
        """Why nothing is proved, even if nothing was found; empty if it is."""
        assert self.evidence is not None
        n = len(self.evidence.keys)
        if n and self.engine is None and not self.no_server:
            return (
                f"{n} segments of KV were stored, and no server was asked for what it has in "
                "memory and in a remote store; name it with --base-url, or give --no-server if "
                "none works on that KV"
            )
        if self.elsewhere:
            return (
                f"{n} segments of KV were stored or dropped before, and none of the places asked "
                "has any KV of this memory; name the server and the folder that have it, or give "
                "--allow-missing if they kept none"
            )
        if self.drop_failed or (self.engine is not None and not all(p.checked for p in places)):
            return (
                "not every place could be reached; once it can, give the same command again, or "
                "`inferscale kv gc --base-url URL`"
            )
        return ""


@dataclass(frozen=True)
class _Proof:
    """What was found.

    Args:
        places: Where was looked.
        doubt: Why what was found proves nothing; empty if it does.
    """

    places: Sequence[Place]
    doubt: str

    @property
    def holds(self) -> bool:
        """Nothing is left, and everybody was asked who could have something."""
        return not self.doubt and not any(place.left for place in self.places)


def _confirm(question: str) -> None:
    """Ask on stderr; ends the command if the answer is no, or nobody is there to give one."""
    if not interactive():
        raise typer.BadParameter(f"{question} Nobody is there to answer; give --yes")
    typer.confirm(question, abort=True, err=True)


def _show(n: int, proof: _Proof | None, json: bool) -> None:
    if proof is not None and proof.doubt:
        err().print(f"not proved: {proof.doubt}", style="bold red", markup=False)
    if json:
        found: dict[str, Any] = {"forgotten": n}
        if proof is not None:
            found["proved"] = proof.holds
            found["left"] = sum(place.left for place in proof.places)
            found["places"] = [asdict(place) for place in proof.places]
        print_json(found)
        return
    out().print(f"forgotten: {n}")
    if proof is None or not proof.places:
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("place", "left", "", title="what is left", title_justify="left")
    for place in proof.places:
        left = str(place.left) if place.checked else "not asked"
        table.add_row(escape(place.name), left, escape(place.note))
    out().print(table)
