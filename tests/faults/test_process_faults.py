"""Processes that die, hang, or meet another one: the cells of the fault table outside the server.

Those inside it stand in ``tests/vllm_connector/test_fault_matrix.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from inferscale_sdk.errors import EngineError, InferScaleError, StoreFull
from inferscale_sdk.testing.fault_matrix import FaultCell, FaultOutcome
from inferscale_sdk.testing.proxy import proxy
from inferscale_sdk.types import InjectionStatus

if TYPE_CHECKING:
    from inferscale_sdk import Memory, VLLMEngine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FACTS = [f"Shelf {i} of the workshop holds {i * 9 + 4} boxes of screws." for i in range(14)]
QUESTION = "How many boxes does shelf 7 hold?"
EXACT, TEXT, ERROR = FaultOutcome.EXACT, FaultOutcome.TEXT, FaultOutcome.ERROR


def not_computed(answer: Any) -> int:
    """Tokens injected now, or by an earlier request of the same segments."""
    report = answer.report
    return int(report.injected_tokens + report.cached_tokens)


class Watch:
    """One person's memory, what a healthy server answers, and what became of each fault."""

    def __init__(self, memory: Memory, record: Callable[[FaultCell], None], prefix: str) -> None:
        self.memory, self.record = memory, record
        self.memory.add([f"{prefix} {fact}" for fact in FACTS], user_id="ada")
        assert self.memory.wait_encoded(timeout=120, user_id="ada")
        self.healthy = self.ask()
        assert self.healthy.report.status is InjectionStatus.INJECTED
        self.plain = self.ask(inject=False)

    def ask(self, **options: Any) -> Any:
        return self.memory.answer(QUESTION, user_id="ada", top_k=12, max_tokens=8, **options)

    def outcome(self, answer: Any) -> FaultOutcome:
        """By the text and the report."""
        if answer.report.status is InjectionStatus.INJECTED:
            same = answer.text == self.healthy.text
            whole = not_computed(answer) >= not_computed(self.healthy)
            return EXACT if same and whole else FaultOutcome.WRONG
        return TEXT if answer.text == self.plain.text else FaultOutcome.WRONG

    def cell(
        self, fault: tuple[str, str, str], expect: FaultOutcome, act: Callable[[], Any]
    ) -> Any:
        """Act under the fault, and write down what came of it."""
        answer, reason = None, ""
        try:
            answer = act()
            outcome, reason = self.outcome(answer), str(answer.report.reason)
        except InferScaleError as error:
            outcome, reason = ERROR, type(error).__name__
            assert len(str(error)) > 20
        injected = not_computed(answer) if answer and outcome is not TEXT else 0
        known = not_computed(self.healthy) if answer else 0
        self.record(FaultCell(*fault, outcome, injected, known, reason))
        assert outcome is expect, (outcome, answer)
        return answer


@pytest.fixture
def watch(doomed: VLLMEngine, remember, record_fault, request) -> Watch:
    return Watch(remember(doomed), record_fault, f"Visit {request.node.name[5:25]}:")


@contextmanager
def asking(watch: Watch, engine: VLLMEngine) -> Iterator[None]:
    """Questions go to another engine for the length of a block."""
    sender = watch.memory._parts.serving.sender
    here, sender._engine = sender._engine, engine
    try:
        yield
    finally:
        sender._engine = here


def settled(watch: Watch, engine: VLLMEngine) -> None:
    """After the fault: injected as before, nothing pinned."""
    assert watch.memory.wait_encoded(timeout=120, user_id="ada")
    for _ in range(3):  # what was lost is learnt in as many answers as there are gaps
        answer = watch.ask()
        watch.memory.wait_encoded(timeout=60, user_id="ada")
    # Encoded anew, a fact may stand behind other facts than before: the words may differ.
    assert answer.report.status is InjectionStatus.INJECTED
    assert not_computed(answer) >= not_computed(watch.healthy)
    assert engine.stats().tiers["host"]["pinned_bytes"] == 0


# -- the server's process ------------------------------------------------------------------------


def test_server_killed_while_it_answers(doomed: VLLMEngine, watch: Watch) -> None:
    def act() -> None:
        for chunk in watch.memory.stream(QUESTION, user_id="ada", top_k=12, max_tokens=300):
            if chunk.text:
                doomed.kill()

    watch.cell(("server", "killed", "answer"), ERROR, act)
    watch.cell(("server", "gone", "question"), ERROR, watch.ask)
    doomed.restart()
    watch.cell(("server", "started again after a kill", "question"), EXACT, watch.ask)
    settled(watch, doomed)


@pytest.mark.slow
def test_server_killed_while_it_encodes(doomed: VLLMEngine, watch: Watch) -> None:
    watch.memory.add([f"Afterwards {fact}" for fact in FACTS], user_id="bob")
    encoding = threading.Thread(
        target=lambda: _quietly(watch.memory.wait_encoded, timeout=5, user_id="bob")
    )
    before = doomed.stats().counters.get("captured_segments", 0)
    encoding.start()
    while doomed.stats().counters.get("captured_segments", 0) < before + 3:
        time.sleep(0.01)
    doomed.kill()
    encoding.join(timeout=60)
    doomed.restart()
    watch.cell(("server", "killed", "encode"), EXACT, watch.ask)
    assert watch.memory.wait_encoded(timeout=120, user_id="bob")
    settled(watch, doomed)


def _quietly(function: Callable[..., Any], **options: Any) -> None:
    with contextlib.suppress(EngineError):
        function(**options)


@pytest.mark.slow
def test_server_hangs(doomed: VLLMEngine, watch: Watch) -> None:
    pid = doomed._server.pid
    os.killpg(pid, signal.SIGSTOP)
    try:
        watch.cell(("server", "hangs", "question"), ERROR, watch.ask)
    finally:
        os.killpg(pid, signal.SIGCONT)
    settled(watch, doomed)


@pytest.mark.slow
def test_server_starts_with_an_empty_folder(
    doomed: VLLMEngine, watch: Watch, doomed_folder: Path
) -> None:
    doomed.kill()
    for path in (doomed_folder / "kv").rglob("*.ifs"):
        path.unlink()
    doomed.restart()
    watch.cell(("server", "started again without its disk", "question"), TEXT, watch.ask)
    settled(watch, doomed)


def deleted_through_one_is_gone_from_the_other(
    watch: Watch, first: VLLMEngine, second: VLLMEngine, kv: Path
) -> None:
    memory, before = watch.memory, set(kv.rglob("*.ifs"))
    memory.add(["Grace keeps the key to the cellar behind the third flower pot."], user_id="grace")
    assert memory.wait_encoded(timeout=60, user_id="grace")
    keys = [path.stem for path in set(kv.rglob("*.ifs")) - before]
    with asking(watch, second):
        memory.answer("Where is the key?", user_id="grace", max_tokens=4)
    held = second.locate(keys)
    assert keys and any("host" in places for places in held.values())

    memory.delete_all(user_id="grace", hard=True)
    deadline = time.monotonic() + 60
    while first.locate(keys).keys() == set(keys) and time.monotonic() < deadline:
        time.sleep(0.2)
    gone = set(keys) - first.locate(keys).keys()  # her facts; a preamble belongs to nobody
    assert gone & held.keys()
    time.sleep(1.1)  # the other one looks once a second
    assert not gone & second.locate(keys).keys()


@pytest.mark.slow
def test_two_servers_on_one_folder(
    doomed: VLLMEngine, watch: Watch, doomed_folder: Path, model_path: Path, tmp_path: Path
) -> None:
    from inferscale_sdk import VLLMEngine

    with VLLMEngine.launch(
        model_path,
        served_model_name="smollm2",
        disk_path=doomed_folder / "kv",
        log_path=tmp_path / "second.log",
        max_model_len=2048,
    ) as second:
        second.info()
        with asking(watch, second):
            fault = ("two servers", "one folder, encoded by the other one", "question")
            watch.cell(fault, EXACT, watch.ask)
            assert second.stats().counters.get("captured_segments", 0) == 0
        deleted_through_one_is_gone_from_the_other(watch, doomed, second, doomed_folder / "kv")
        second.kill()
        watch.cell(("two servers", "one folder, the other killed", "question"), EXACT, watch.ask)
    settled(watch, doomed)


# -- the network ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n_bytes",
    [pytest.param(0, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.slow), 500],
)
def test_connection_reset(doomed: VLLMEngine, watch: Watch, n_bytes: int) -> None:
    from inferscale_sdk import VLLMEngine

    def cut(sent: int, upstream: socket.socket) -> bytes | None:
        return upstream.recv(256)[: n_bytes - sent] if sent < n_bytes else None

    port = int(doomed.base_url.rsplit(":", 1)[1])
    with proxy(port, cut) as between:
        broken = VLLMEngine(
            f"http://127.0.0.1:{between}",
            tokenizer=doomed.tokenizer,
            timeout_seconds=10,
            retries=0,
        )
        broken._info = doomed.info()
        with closing(broken), asking(watch, broken):
            fault = ("network", f"connection reset after {n_bytes} bytes", "answer")
            watch.cell(fault, ERROR, watch.ask)
    settled(watch, doomed)


# -- the client's process and files --------------------------------------------------------------

CHILD = """
import sys, time
from inferscale_sdk import Memory, VLLMEngine
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
url, model, folder, act = sys.argv[1:]
engine = VLLMEngine(url, tokenizer=model)
memory = Memory(engine, live_facts=0, path=folder, embedder=FakeEmbedder())
if act == "encode":
    boxes = [f"Box {i} is number {i * 17 + 5} in the catalogue." for i in range(60)]
    memory.add(boxes, user_id="eve")
    print("ready", flush=True)
    memory.wait_encoded(timeout=60)
elif act == "add":
    print("ready", flush=True)
    for i in range(100000):
        memory.add(f"Note {i} says {i * 3}.", user_id="eve")
else:
    for chunk in memory.stream("How many boxes?", user_id="ada", top_k=12, max_tokens=1000):
        if chunk.text:
            print("ready", flush=True)
"""


@pytest.mark.parametrize("stage", [pytest.param("add", marks=pytest.mark.slow), "encode", "answer"])
def test_client_killed(
    doomed: VLLMEngine, watch: Watch, model_path: Path, tmp_path: Path, stage: str
) -> None:
    """Killed in the middle of things; another process goes on with the same folder."""
    argv = [sys.executable, "-c", CHILD, doomed.base_url, str(model_path)]
    child = subprocess.Popen(
        [*argv, str(tmp_path / "memory"), stage], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.4)
    finally:
        child.kill()
        child.wait(timeout=10)
        child.stdout.close()
    watch.cell(("client", "killed", stage), EXACT, watch.ask)
    notes = watch.memory.get_all(user_id="eve", limit=100_000)
    if stage == "add":  # whole facts, in order, none in part
        assert [f"Note {i} says {i * 3}." for i in range(len(notes))] == sorted(
            (fact.text for fact in notes), key=lambda text: int(text.split()[1])
        )
        watch.memory.delete_all(user_id="eve")
    elif stage == "encode":
        assert len(notes) == 60
        assert watch.memory.wait_encoded(timeout=120, user_id="eve")
    settled(watch, doomed)


def test_clients_disk_is_full(doomed: VLLMEngine, watch: Watch) -> None:
    """SQLite's own limit on pages stands in for a full disk: the same error code."""
    database = watch.memory.store._db
    with database.write() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
    known = watch.memory.count(user_id="ada")
    with pytest.raises(StoreFull) as caught:
        for i in range(200):
            watch.memory.add(f"One more note, number {i}: {'x' * 4000}", user_id="ada")
    watch.record(
        FaultCell("client", "fact store's disk full", "add", ERROR, reason=caught.type.__name__)
    )
    assert watch.memory.count(user_id="ada") >= known
    watch.cell(("client", "fact store's disk full", "question"), EXACT, watch.ask)
    with database.write() as connection:
        connection.execute("PRAGMA max_page_count = 1073741823")


def test_recall_file_is_rubbish(watch: Watch, tmp_path: Path) -> None:
    """Recall is gone under a running memory: the chat goes on without, and the report says why."""
    for path in (tmp_path / "memory").glob("recall*.db*"):
        path.write_bytes(b"rubbish" * 4000)
    watch.memory.add("Shelf 99 is new.", user_id="ada")  # so that recall has to look
    answer = watch.ask()
    assert answer.text
    assert answer.report.reason
    assert answer.report.fact_ids == ()
    watch.record(
        FaultCell(
            "client", "recall index broken", "question", TEXT, 0, 0, str(answer.report.reason)
        )
    )


@pytest.mark.slow
def test_secret_does_not_match(
    doomed: VLLMEngine, watch: Watch, doomed_folder: Path, model_path: Path, tmp_path: Path
) -> None:
    """A server with a secret, a client without: nothing is injected, everything is answered."""
    from inferscale_sdk import VLLMEngine

    with VLLMEngine.launch(
        model_path,
        served_model_name="smollm2",
        disk_path=doomed_folder / "kv",
        log_path=tmp_path / "secret.log",
        max_model_len=2048,
        secret="only the server knows",
    ) as guarded:
        stranger = VLLMEngine(
            guarded.base_url, tokenizer=doomed.tokenizer, secret=b"a guess of nobody"
        )
        with closing(stranger), asking(watch, stranger):
            watch.cell(("client", "wrong secret", "question"), TEXT, watch.ask)
