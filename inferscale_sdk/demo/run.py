"""The demo from start to verdict."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_sdk.bench.speed.arms import BASIC_ARMS
from inferscale_sdk.bench.speed.counters import EXTERNAL_HITS, read_counter, settled_counter
from inferscale_sdk.bench.speed.encoding import encode_waiting
from inferscale_sdk.bench.speed.listener import Listener, Stages
from inferscale_sdk.config import settings
from inferscale_sdk.demo.life import Life, load_life
from inferscale_sdk.demo.measure import Measurement, PlannedQuestion, ask_all, count_requests
from inferscale_sdk.demo.report import Answer, DemoReport, cells_of
from inferscale_sdk.engines.base import Engine, Sampling
from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.types import Message

if TYPE_CHECKING:
    from inferscale_sdk.engines.vllm import VLLMEngine
    from inferscale_sdk.memory import Memory
    from inferscale_sdk.recall.base import Embedder

__all__ = ["DemoOptions", "remember", "run_demo"]

# Every request of two arms has a salt of its own and so fills new blocks: a round writes about
# 40,000 tokens. The ceiling's prompts must still be there a round later.
_KV_CACHE_GIB = 3


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What is compared.

    Args:
        ks: Numbers of recalled facts.
        rounds: Timed repetitions; each cell gets ``rounds`` times the number of questions.
        answer_tokens: Length of an answer at most.
        seed: Of the order of the requests.
    """

    ks: tuple[int, ...] = (5, 50)
    rounds: int = 2
    answer_tokens: int = 12
    seed: int = 0


def run_demo(listener: Listener, options: DemoOptions | None = None) -> DemoReport:
    """Start a server, remember a life, ask about it three ways, and check vLLM's own counter.

    Facts and KV stay in ``demo`` under ``settings().home``, so that a second run encodes nothing.

    Raises:
        IncompatibleModel: The server cannot inject memory.
        EngineError: The server cannot be started, or failed.
        ConfigurationError: No interpreter with vLLM.
    """
    from inferscale_sdk.memory import Memory
    from inferscale_sdk.models import bundled_model_path

    options = options or DemoOptions()
    stages = Stages(listener)
    folder = settings().home / "demo"
    with stages.stage("model", "Looking for the model (unpacked once, about half a minute)"):
        bundled_model_path()
    with stages.stage("start", "Starting vLLM on this machine"), ThreadPoolExecutor(1) as pool:
        # Loading the embedder takes seconds, starting a server leaves a processor idle.
        loading = pool.submit(_loaded_embedder)
        engine = _launch(folder)
    # No threads of our own: the client must not compete with the server while it is measured.
    with (
        engine,
        # Everything injected: the two ways are to be told apart.
        Memory(
            engine,
            path=folder / "memory",
            embedder=loading.result(),
            background=False,
            live_facts=0,
        ) as memory,
    ):
        life = load_life()
        encoded = _prepare_memory(memory, life, stages)
        plans = _plan_all(memory, life, options, stages)
        before = read_counter(engine.base_url, EXTERNAL_HITS)
        n_requests = count_requests(len(plans), options.rounds)
        with stages.progress("ask", "Asking", n_requests) as tell:
            seen = _measure(engine, plans, options, tell)
        after = settled_counter(
            lambda: read_counter(engine.base_url, EXTERNAL_HITS),
            at_least=before + seen.injected_tokens,
        )
        return DemoReport(
            model=engine.info().model,
            facts=memory.count(user_id=life.user_id),
            encoded=encoded,
            cells=cells_of(seen.samples),
            answers=_answers(life, plans, seen),
            injected_tokens=seen.injected_tokens,
            external_hits_delta=after - before,
            seconds=stages.seconds,
        )


def _loaded_embedder() -> Embedder:
    from inferscale_sdk.recall.embedders import bundled_embedder

    embedder = bundled_embedder()
    embedder.embed_query("The first text loads the model.")
    return embedder


def _launch(folder: Path) -> VLLMEngine:
    from inferscale_sdk.engines.vllm import VLLMEngine

    engine = VLLMEngine.launch(
        disk_path=folder / "kv",
        log_path=folder / "server.log",
        kv_cache_gib=_KV_CACHE_GIB,
        exact_reports=True,
    )
    info = engine.info()
    if not info.can_inject:
        engine.close()
        raise IncompatibleModel(f"{info.model} cannot take injected memory: {info.reason}")
    return engine


def _prepare_memory(memory: Memory, life: Life, stages: Stages) -> int:
    """Remember and encode what is not yet; returns how many facts were encoded."""
    with stages.stage("remember", f"Remembering {len(life.turns)} turns of {life.name}"):
        remember(memory, life)
    return encode_waiting(memory, stages)


def remember(memory: Memory, life: Life) -> bool:
    """Make ``memory`` hold exactly this life for its user.

    Returns:
        Whether anything had to be stored.
    """
    mark = {"life": life.digest()}
    if (
        memory.count(user_id=life.user_id)
        == len(memory.get_all(user_id=life.user_id, filters=mark))
        == len(life.turns)
    ):
        return False
    memory.delete_all(user_id=life.user_id, hard=True)
    memory.add(_named(life), user_id=life.user_id, metadata=mark)
    return True


def _named(life: Life) -> list[Message]:
    """The turns, the person's own under their first name."""
    name = life.name.split()[0]
    return [replace(turn, name=name) if turn.role == "user" else turn for turn in life.messages()]


def _plan_all(
    memory: Memory, life: Life, options: DemoOptions, stages: Stages
) -> list[PlannedQuestion]:
    """Plan every question at every k, and make sure that the server still has the KV."""
    with stages.stage("recall", "Recalling facts"):
        plans = _plans(memory, life, options)
        lost = [planned for planned in plans if _has_lost(memory, planned)]
    if lost:
        # The folder was emptied behind our back. The memory has learnt of it by asking.
        encode_waiting(memory, stages)
        with stages.stage("recall", "Recalling facts again"):
            plans = _plans(memory, life, options)
    return plans


def _plans(memory: Memory, life: Life, options: DemoOptions) -> list[PlannedQuestion]:
    plans = []
    for k in options.ks:
        for number, asked in enumerate(life.questions):
            plan = memory.prepare(
                asked.question, user_id=life.user_id, top_k=k, max_tokens=options.answer_tokens
            )
            texts = frozenset(scored.fact.text for scored in plan.facts)
            plans.append(PlannedQuestion(number, k, plan, texts))
    return plans


def _has_lost(memory: Memory, planned: PlannedQuestion) -> bool:
    report = memory.complete(planned.plan, sampling=Sampling(max_tokens=1)).report
    return bool(report.missing_keys)


def _measure(
    engine: Engine,
    plans: list[PlannedQuestion],
    options: DemoOptions,
    tell: Callable[[int], None],
) -> Measurement:
    asked = 0

    def step() -> None:
        nonlocal asked
        asked += 1
        tell(asked)

    return ask_all(
        engine,
        plans,
        rounds=options.rounds,
        answer_tokens=options.answer_tokens,
        seed=options.seed,
        step=step,
    )


def _answers(life: Life, plans: list[PlannedQuestion], seen: Measurement) -> tuple[Answer, ...]:
    said = {turn.id: turn.text for turn in life.turns}
    answers = []
    for planned in plans:
        asked = life.questions[planned.question]
        answers.append(
            Answer(
                question=asked.question,
                expected=asked.answer,
                k=planned.k,
                evidence=any(said[turn_id] in planned.recalled for turn_id in asked.evidence),
                texts={arm: seen.answers[planned.question, planned.k, arm] for arm in BASIC_ARMS},
            )
        )
    return tuple(answers)
