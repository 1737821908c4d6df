"""``Memory``: all verbs in one object."""

from __future__ import annotations

from pathlib import Path

from inferscale_sdk.config import settings
from inferscale_sdk.engines.base import Engine
from inferscale_sdk.facts.base import FactStore
from inferscale_sdk.ingest.progress import ProgressCallback
from inferscale_sdk.ingest.windows import WindowStrategy
from inferscale_sdk.memory.answer_verbs import AnswerVerbs
from inferscale_sdk.memory.assembly import Assembly
from inferscale_sdk.memory.find_verbs import FindVerbs
from inferscale_sdk.memory.preparing import OnError
from inferscale_sdk.memory.values import MemoryStats
from inferscale_sdk.memory.verbs import DEFAULT_TOP_K
from inferscale_sdk.memory.write_verbs import WriteVerbs
from inferscale_sdk.prompt.frame import DEFAULT_FRAME, Frame
from inferscale_sdk.prompt.order import FactOrder, check_order
from inferscale_sdk.recall.base import Embedder, RecallIndex
from inferscale_sdk.sqlite.clauses import check_count
from inferscale_sdk.types import Namespace

__all__ = ["Memory"]

DEFAULT_MAX_FACT_CHARS = 1000


class Memory(WriteVerbs, FindVerbs, AnswerVerbs):
    """What an application remembers about its users, and how it answers with it.

    ``Memory()`` keeps facts in an embedded store under the user's data folder. With an engine it
    also encodes them ahead of time and answers questions with their KV injected. Several objects,
    threads and processes may use one folder at once. Close it, or use it as a context manager:
    what was given (engine, store, index) stays open.

    Args:
        engine: Who answers and encodes; without one facts can be stored and found.
        path: Folder of store and index, by default ``memory`` under ``INFERSCALE_HOME``.
        store: A fact store in place of the one in ``path``.
        index: A recall index in place of the one in ``path``.
        embedder: In place of the bundled one, which is loaded on first use.
        frame: The text around facts in a prompt.
        window: Which facts a fact is encoded behind; by default ten related ones and the
            ten before it.
        live_facts: So many of the best facts stay prompt text behind the injected ones: they are
            computed with every request and see all the others. A dial between quality and time;
            0 injects everything. By default the best one, unless it is the only one, longer than
            64 tokens, or another order is wanted.
        order: In which facts stand in a prompt: ``best-last``, which serves most models best,
            ``best-first``, ``time`` or ``session``; see
            :data:`~inferscale_sdk.prompt.order.FactOrder`. Facts that stay text, because nothing
            is stored for them yet or by ``live_facts``, stand behind the others.
        prefetch: Tell the server which segments come while the prompt is still being made, so
            that it starts to read those that lie on disk or remote. One small request more for
            each question; worth it where memory does not hold what is asked for.
        top_k: Facts recalled for a prompt at most, where a call does not say.
        on_error: What a failure of recall, stored KV or injection does to an answer: ``text``
            goes on with less (logged, and named in ``report.reason``), ``raise`` raises.
        multi_user: Whether every call must name a user. By default as soon as a second one is
            known.
        background: Index and encode in threads. Without, searches index and
            :meth:`wait_encoded` encodes.
        max_fact_chars: A longer turn becomes several facts.
        max_facts: Live facts of one user (of one app) at most; ``None`` for no limit. What would
            pass it is refused with :class:`~inferscale_sdk.errors.StoreFull`.
        orphan_check_seconds: How often the encoding thread compares the ledger of stored KV with
            the server, by default ``INFERSCALE_ORPHAN_CHECK_SECONDS`` or every hour; 0 never.

    Raises:
        ConfigurationError: Arguments contradict each other, are of another kind or out of range.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        path: Path | str | None = None,
        store: FactStore | None = None,
        index: RecallIndex | None = None,
        embedder: Embedder | None = None,
        frame: Frame = DEFAULT_FRAME,
        window: WindowStrategy | None = None,
        top_k: int = DEFAULT_TOP_K,
        on_error: OnError = "text",
        multi_user: bool | None = None,
        background: bool = True,
        max_fact_chars: int = DEFAULT_MAX_FACT_CHARS,
        max_facts: int | None = None,
        live_facts: int | None = None,
        order: FactOrder = "best-last",
        prefetch: bool = False,
        orphan_check_seconds: float | None = None,
    ) -> None:
        self._top_k = check_count(top_k, "top_k", least=1)
        self._max_fact_chars = check_count(max_fact_chars, "max_fact_chars", least=16)
        self._max_facts = None if max_facts is None else check_count(max_facts, "max_facts")
        if orphan_check_seconds is None:
            orphan_check_seconds = settings().orphan_check_seconds
        self._parts = Assembly(
            engine,
            path=path,
            store=store,
            index=index,
            embedder=embedder,
            frame=frame,
            window=window,
            on_error=on_error,
            multi_user=multi_user,
            background=background,
            orphan_check_seconds=orphan_check_seconds,
            live_facts=None if live_facts is None else check_count(live_facts, "live_facts"),
            order=check_order(order),
            prefetch=prefetch,
        )

    @property
    def engine(self) -> Engine | None:
        """Who answers, if anyone."""
        serving = self._parts.maybe_serving
        return serving.engine if serving is not None else None

    # -- encoding and life -----------------------------------------------------------------

    def wait_encoded(
        self,
        timeout: float | None = None,
        *,
        user_id: str | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
        app_id: str | None = None,
        progress: ProgressCallback | None = None,
    ) -> bool:
        """Wait until every fact that can be encoded is; of everybody where no id is given.

        Facts longer than the model's context, and those the engine refused again and again, stay
        text and are not waited for.

        Args:
            timeout: Seconds to wait at most.
            user_id: Whose facts.
            agent_id: Of which agent.
            run_id: Of which session.
            app_id: Of which application.
            progress: Called now and then with what has been done and how much is left.

        Returns:
            Whether that is so; ``False`` at once without an engine that can inject.
        """
        serving = self._parts.maybe_serving
        if serving is None:
            return False
        scope = Namespace(user_id=user_id, agent_id=agent_id, run_id=run_id, app_id=app_id)
        return serving.wait_encoded(timeout, None if scope.is_empty else scope, progress)

    def flush(self, timeout: float | None = None) -> bool:
        """Index everything, have everything deleted dropped, and wait as :meth:`wait_encoded`."""
        self._parts.recaller.catch_up()
        if self._parts.maybe_serving is not None:
            self._parts.serving.forget_promptly()
        return self.wait_encoded(timeout)

    def stats(self) -> MemoryStats:
        """Counters, for people and dashboards."""
        return self._parts.stats()

    def close(self) -> None:
        """Stop threads and release files; twice is fine. What waits goes on next time."""
        self._parts.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
