"""Many users at once, adding, changing, deleting and asking, on one real server.

Each user's answers are checked against what that user could know at that moment. The short run is
part of the suite; ``make load`` runs the long one and writes its result into
``docs/reliability.md``.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import statistics
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from inferscale_sdk import AsyncMemory, VLLMEngine
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.types import InjectionStatus

pytestmark = pytest.mark.engine

THINGS = ("locker", "garage", "studio", "cabin", "safe", "attic", "boat", "shed", "office", "barn")
COLOURS = [
    "amber",
    "black",
    "blue",
    "bronze",
    "brown",
    "crimson",
    "golden",
    "green",
    "grey",
    "indigo",
    "orange",
    "pink",
    "purple",
]
ANIMALS = [
    "badger",
    "beaver",
    "camel",
    "cobra",
    "crane",
    "eagle",
    "falcon",
    "ferret",
    "goose",
    "heron",
    "horse",
    "lemur",
    "lion",
]
CODE = re.compile(rf"\b(?:{'|'.join(COLOURS)})-(?:{'|'.join(ANIMALS)})-\d{{2,3}}\b")
FIRST_FACTS = 5
N_ANSWER = 20
HOST_BYTES = 64 << 20  # less than all users' segments together: the disk has to help
RECORD = os.environ.get("INFERSCALE_RECORD_LOAD")


@dataclass
class Tally:
    """What happened, and what must not."""

    users: int
    requests: int = 0
    answers: int = 0
    adds: int = 0
    updates: int = 0
    deletes: int = 0
    injected: int = 0
    partly: int = 0
    text: int = 0
    injected_tokens: int = 0
    prompt_tokens: int = 0
    right_code: int = 0
    foreign_facts: int = 0
    stale_facts: int = 0
    lost_facts: int = 0
    errors: int = 0
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)

    def complain(self, kind: str, what: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.complaints.append(f"{kind}: {what}"[:300])


def is_mixture(code: str, known: Collection[str]) -> bool:
    """Whether each part of a code stands in one that is known.

    A small model mixes the codes of its prompt, and now and then hits upon somebody else's.
    """
    parts = zip(code.split("-"), *(one.split("-") for one in known), strict=True)
    return all(part in those for part, *those in parts)


class Registry:
    """Every code ever given out, and to whom; none is given twice."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.owner: dict[str, str] = {}

    def new(self, user: str) -> str:
        while True:
            colour, animal = self._random.choice(COLOURS), self._random.choice(ANIMALS)
            code = f"{colour}-{animal}-{self._random.randrange(10, 1000)}"
            if code not in self.owner:
                self.owner[code] = user
                return code


class User:
    """One person: what was told, and what an answer may therefore hold."""

    def __init__(self, name: str, memory: AsyncMemory, codes: Registry, tally: Tally) -> None:
        self.name = name
        self._memory, self._codes, self.tally = memory, codes, tally
        self._random = random.Random(name)
        self.facts: dict[str, tuple[str, str]] = {}  # id: (thing, code)

    async def act(self) -> None:
        """One request of the mix: mostly questions."""
        chance = self._random.random()
        if not self.facts or (chance < 0.08 and len(self.facts) < len(THINGS)):
            await self.add()
        elif chance < 0.14:
            await self._update()
        elif chance < 0.20 and len(self.facts) > 1:
            await self._delete()
        else:
            await self.ask()
        self.tally.requests += 1

    async def add(self) -> None:
        known = {thing for thing, _ in self.facts.values()}
        thing = self._random.choice([thing for thing in THINGS if thing not in known])
        code = self._codes.new(self.name)
        text = f"The door code of my {thing} is {code}."
        (fact,) = await self._memory.add(text, user_id=self.name)
        self.facts[fact.id] = (thing, code)
        self.tally.adds += 1

    async def _update(self) -> None:
        fact_id = self._random.choice(list(self.facts))
        thing, _ = self.facts[fact_id]
        code = self._codes.new(self.name)
        text = f"The door code of my {thing} is {code}."
        await self._memory.update(fact_id, text=text, user_id=self.name)
        self.facts[fact_id] = (thing, code)
        self.tally.updates += 1

    async def _delete(self) -> None:
        fact_id = self._random.choice(list(self.facts))
        await self._memory.delete(fact_id, user_id=self.name)
        del self.facts[fact_id]
        self.tally.deletes += 1

    async def ask(self) -> None:
        thing, code = self.facts[self._random.choice(list(self.facts))]
        plan = await self._memory.prepare(
            f"What is the door code of my {thing}?",
            user_id=self.name,
            top_k=2 * len(THINGS),
            max_tokens=N_ANSWER,
        )
        completion = await self._memory.complete(plan, sampling=Sampling(max_tokens=N_ANSWER))
        tally, report = self.tally, completion.report
        tally.answers += 1
        # The prompt, token by token: exactly what this user could know now.
        prompt = self._memory.engine.tokenizer.decode(plan.token_ids)
        told = {code for _, code in self.facts.values()}
        for found in set(CODE.findall(prompt)) - told:
            kind = "stale_facts" if self._codes.owner.get(found) == self.name else "foreign_facts"
            tally.complain(kind, f"{self.name} got {found} of {self._codes.owner.get(found)}")
        for missing in told - set(CODE.findall(prompt)):
            tally.complain("lost_facts", f"{self.name} missed {missing}")
        # The answer: no code of somebody else, whatever KV was under the prompt.
        for found in CODE.findall(completion.text):
            owner = self._codes.owner.get(found, self.name)
            if owner != self.name and not is_mixture(found, told):
                tally.complain("foreign_facts", f"{self.name} was told {found}")
        tally.right_code += code in completion.text
        tally.injected_tokens += report.injected_tokens
        tally.prompt_tokens += report.prompt_tokens
        match report.status:
            case InjectionStatus.INJECTED:
                tally.injected += 1
            case InjectionStatus.PARTIAL:
                tally.partly += 1
            case _:
                tally.text += 1


@dataclass(frozen=True)
class Sample:
    """The server's and this process's resources at one moment."""

    requests: int
    server_mib: float
    server_files: int
    client_mib: float
    client_files: int
    pinned_bytes: int
    host_bytes: int


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            queue += map(int, task.read_text().split())
    return found


def usage(pids: list[int]) -> tuple[float, int]:
    """MiB of memory and open files of some processes."""
    mib, files = 0.0, 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                mib += int(line.split()[1]) / 1024
        files += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return mib, files


def sample(engine: VLLMEngine, tally: Tally) -> Sample:
    host = engine.stats().tiers["host"]
    server_mib, server_files = usage(family(engine._server.pid))
    client_mib, client_files = usage([os.getpid()])
    return Sample(
        tally.requests,
        round(server_mib, 1),
        server_files,
        round(client_mib, 1),
        client_files,
        host["pinned_bytes"],
        host["used_bytes"],
    )


async def run_load(engine: VLLMEngine, folder: Path, users: int, requests: int):
    tally, codes, samples = Tally(users), Registry(7), []
    memory = AsyncMemory(engine, path=folder, embedder=FakeEmbedder())
    people = [User(f"user-{i}", memory, codes, tally) for i in range(users)]

    async def live(user: User) -> None:
        while tally.requests < requests:
            try:
                await user.act()
            except Exception as error:
                tally.requests += 1
                tally.complain("errors", f"{user.name}: {error!r}")

    async def watch() -> None:
        step = max(1, requests // 12)
        for at in range(step, requests + 1, step):
            while tally.requests < at:
                await asyncio.sleep(0.2)
            samples.append(await asyncio.to_thread(sample, engine, tally))

    async with memory:
        for user in people:
            for _ in range(FIRST_FACTS):
                await user.add()
        assert await memory.flush(timeout=600)
        started = time.monotonic()
        await asyncio.gather(watch(), *(live(user) for user in people))
        tally.seconds = round(time.monotonic() - started, 1)
        assert await memory.flush(timeout=240)
        # All is encoded now: every user once more, injected whole.
        settled = Tally(users)
        for user in people:
            user.tally = settled
            await user.ask()
    return tally, settled, samples


def test_a_mixture_of_ones_own_codes_is_told_from_anothers_code():
    own = {"purple-badger-103", "golden-eagle-601"}
    assert is_mixture("golden-eagle-103", own)
    assert not is_mixture("golden-eagle-104", own)
    assert not is_mixture("golden-heron-103", own)
    assert not is_mixture("golden-eagle-103", set())


@pytest.mark.parametrize(
    ("users", "requests"),
    [
        pytest.param(12, 120, id="short", marks=pytest.mark.timeout(900)),
        pytest.param(
            100,
            2200,
            id="long",
            marks=[pytest.mark.slow, pytest.mark.timeout(3000)],
        ),
    ],
)
async def test_many_users_at_once(model_path, tmp_path, users: int, requests: int) -> None:
    with VLLMEngine.launch(
        model_path,
        served_model_name="smollm2",
        disk_path=tmp_path / "kv",
        log_path=tmp_path / "server.log",
        max_model_len=2048,
        host_bytes=HOST_BYTES,
        secret="a secret of both sides",
        timeout_seconds=240,
    ) as engine:
        engine.info()
        pids = family(engine._server.pid)
        tally, settled, samples = await run_load(engine, tmp_path / "memory", users, requests)
        assert set(pids) <= set(family(engine._server.pid)), "the engine was restarted"
        leftover = engine.stats().tiers["host"]["pinned_bytes"]
        counters = engine.stats().counters
    if RECORD:
        record = {
            "tally": asdict(tally),
            "settled": asdict(settled),
            "samples": [asdict(one) for one in samples],
            "counters": counters,
            "host_mib": HOST_BYTES >> 20,
        }
        Path(RECORD).write_text(json.dumps(record))
    assert tally.complaints == []
    assert settled.complaints == []
    assert settled.injected == users
    assert tally.injected  # how many depends on how soon encoding gets its turn
    assert leftover == 0
    flat(samples)


def flat(samples: list[Sample]) -> None:
    """Nothing of ours grows from the middle of the run to its end."""
    half = len(samples) // 2
    middle, end = samples[half - 3 : half], samples[-3:]

    def growth(name: str) -> tuple[float, float]:
        early, late = (statistics.median(getattr(x, name) for x in part) for part in (middle, end))
        return early, late - early

    limits = {
        "server_mib": (0.02, 48),
        "client_mib": (0.05, 48),
        "server_files": (0.05, 12),
        "client_files": (0.05, 12),
    }
    for name, (share, slack) in limits.items():
        early, more = growth(name)
        assert more <= early * share + slack, (name, [getattr(one, name) for one in samples])
    assert all(one.host_bytes <= HOST_BYTES for one in samples)
