"""vLLM and transformers use each other's segments.

Both engines encode the same facts under the same keys, and answer from their own and from the
other's segments. Two correct engines differ by rounding, and so does one engine from itself when
it computes a prompt in other chunks: that difference is the noise that the figures here are held
against.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from inferscale_sdk import Fact, Message, Namespace, TransformersEngine, VLLMEngine  # noqa: E402
from inferscale_sdk.demo.life import life_users, load_life  # noqa: E402
from inferscale_sdk.engines.base import Engine, Sampling  # noqa: E402
from inferscale_sdk.facts.base import EncodingRecord  # noqa: E402
from inferscale_sdk.kv.segment import Segment  # noqa: E402
from inferscale_sdk.prompt.base import EncodePlan, PromptPlan  # noqa: E402
from inferscale_sdk.prompt.plan import Planner  # noqa: E402
from inferscale_sdk.protocol import salt_suffix  # noqa: E402
from inferscale_sdk.tiers.disk import DiskTier  # noqa: E402
from inferscale_sdk.types import InjectionStatus  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

N_FACTS = 48
GROUP = 8
"""Facts encoded in one prompt."""
RECALLED = 8
N_PROMPTS = [8, pytest.param(50, marks=pytest.mark.slow)]
ANSWER = Sampling(max_tokens=12)
OTHER_CHUNK = 24
"""Tokens computed at once by the engine that shows the noise."""

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Work:
    """The same for every engine: what to encode, and what to ask."""

    encodes: tuple[EncodePlan, ...]
    prompts: tuple[PromptPlan, ...]

    @property
    def keys(self) -> list[str]:
        return [span.key for plan in self.encodes for span in plan.op.captures]

    def salted(self, salt: str) -> list[PromptPlan]:
        """Prompts that find nothing in the server's own prefix cache."""
        return [
            replace(plan, cache_salt=f"ifs1:{salt}:" + salt_suffix([s.key for s in plan.segments]))
            for plan in self.prompts
        ]


def make_work(engine: Engine, n_prompts: int) -> Work:
    planner = Planner(engine.tokenizer, store_secret=secrets.token_bytes(32))
    scope = Namespace(user_id="cross-" + secrets.token_hex(4))
    lives = [load_life(user) for user in life_users()]
    texts = [turn.text for life in lives for turn in life.turns if turn.role == "user"]
    facts = [
        Fact(
            id=f"f{chr(97 + i // 26)}{chr(97 + i % 26)}",
            version=1,
            text=text,
            namespace=scope,
            conversation_id="c",
            position=i,
            created_at=_NOW,
            updated_at=_NOW,
        )
        for i, text in enumerate(islice(dict.fromkeys(texts), N_FACTS))
    ]
    encodes, records = [], {}
    for start in range(0, N_FACTS, GROUP):
        plan = planner.plan_encode(
            (),
            facts[start : start + GROUP],
            fingerprint=engine.info().fingerprint,
            partition=scope.partition,
            capture_preamble=start == 0,
        )
        encodes.append(plan)
        spans = plan.op.captures[1:] if plan.captures_preamble else plan.op.captures
        for fact_id, context, span in zip(plan.fact_ids, plan.context_fact_ids, spans, strict=True):
            records[fact_id] = EncodingRecord(
                fact_id, 1, "cross", span.key, span.stop - span.start, context, created_at=_NOW
            )
    rng = random.Random(5)
    questions = [q.question for life in lives for q in life.questions]
    prompts = [
        planner.plan(
            [Message("user", questions[i % len(questions)])],
            facts=rng.sample(facts, RECALLED),
            encodings=records,
            scope=scope,
            fingerprint=engine.info().fingerprint,
            max_model_len=engine.info().max_model_len,
            reserve_tokens=ANSWER.max_tokens,
        )
        for i in range(n_prompts)
    ]
    assert len(encodes) == N_FACTS // GROUP
    return Work(tuple(encodes), tuple(prompts))


def encode(engine: Engine, work: Work) -> None:
    for plan in work.encodes:
        answer = engine.encode(plan)
        assert answer.failed == {}
        assert len(answer.stored) == len(plan.op.captures)


def answers(engine: Engine, work: Work, salt: str) -> list[str]:
    found = []
    for plan in work.salted(salt):
        completion = engine.generate(plan, ANSWER)
        report = completion.report
        assert report.status is InjectionStatus.INJECTED, report
        assert report.injected_tokens == sum(s.n_tokens for s in plan.segments)
        assert report.cached_tokens == 0
        found.append(completion.text)
    return found


@dataclass(frozen=True)
class Results:
    """Segments and answers, by who made the segments and who answered."""

    segments: Mapping[str, Mapping[str, Segment]]
    answers: Mapping[str, list[str]]


@pytest.fixture(scope="module", params=N_PROMPTS)
def results(
    engine: VLLMEngine,
    model_path: Path,
    server_folder: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Results]:
    folder = server_folder / "kv"
    options = {"max_model_len": 4096, "max_batch": 1}
    with (
        TransformersEngine(model_path, disk_path=folder, **options) as embedded,
        TransformersEngine(
            model_path, persist=False, prefill_chunk_tokens=OTHER_CHUNK, **options
        ) as chunked,
    ):
        assert embedded.info().fingerprint == engine.info().fingerprint
        work = make_work(engine, request.param)
        disk = DiskTier(folder, engine.info().fingerprint)

        def on_disk() -> dict[str, Segment]:
            found = {key: disk.get(key) for key in work.keys}
            return {key: segment for key, segment in found.items() if segment is not None}

        made, said = {}, {}
        encode(engine, work)
        made["vllm"] = on_disk()
        said["vllm from vllm"] = answers(engine, work, "vv")
        said["transformers from vllm"] = answers(embedded, work, "tv")
        assert engine.forget(work.keys) == len(work.keys)
        assert on_disk() == {}
        encode(embedded, work)
        made["transformers"] = on_disk()
        said["vllm from transformers"] = answers(engine, work, "vt")
        said["transformers from transformers"] = answers(embedded, work, "tt")
        encode(chunked, work)
        made["chunked"] = {key: chunked._runtime.store.get(key) for key in work.keys}  # type: ignore[misc]
        said["chunked from chunked"] = answers(chunked, work, "cc")
        engine.forget(work.keys)
        embedded.forget(work.keys)
        yield Results(made, said)


def deviation(
    one: Mapping[str, Segment], other: Mapping[str, Segment]
) -> dict[str, tuple[float, float]]:
    """Root mean square and largest deviation of keys and values, over all layers.

    The first is relative to the root mean square, the second to the largest entry of its layer.
    """
    assert one.keys() == other.keys()
    a = torch.cat([segment.data for segment in one.values()], dim=2).float()
    b = torch.cat([other[key].data for key in one], dim=2).float()
    found = {}
    for name, index in (("keys", 0), ("values", 1)):
        x, y = a[:, index].flatten(1), b[:, index].flatten(1)  # [layer, entry]
        rms = (x - y).square().mean(1).sqrt() / x.square().mean(1).sqrt()
        largest = (x - y).abs().amax(1) / x.abs().amax(1)
        found[name] = (float(rms.max()), float(largest.max()))
    return found


def agreement(one: list[str], other: list[str]) -> int:
    return sum(a == b for a, b in zip(one, other, strict=True))


def slack(one: int, other: int, n: int) -> float:
    """By how much two counts of one share differ by chance in one of twenty runs.

    The share is Laplace's estimate from both: eight of eight do not say that it is 1.
    """
    share = (one + other + 2) / (2 * n + 4)
    return 2 * math.sqrt(2 * n * share * (1 - share))


Tell = Callable[[str, object], None]


def test_segments_agree(results: Results, tell: Tell) -> None:
    made = results.segments
    in_16_bits = next(iter(made["vllm"].values())).data.dtype.itemsize == 2
    for key, segment in made["vllm"].items():
        other = made["transformers"][key]
        assert (segment.origin, segment.token_digest) == (other.origin, other.token_digest)
        assert segment.layout == other.layout
    noise = deviation(made["transformers"], made["chunked"])
    cross = deviation(made["transformers"], made["vllm"])
    for name in ("keys", "values"):
        tell(f"{name}, with other chunks (rms, largest)", noise[name])
        tell(f"{name}, from vLLM (rms, largest)", cross[name])
        # Measured in bfloat16: 1.1 times the noise in the mean, 0.9 to 1.5 times in the largest
        # entry. In float32, where nothing is rounded in between, the engines' kernels differ by
        # more than the chunks do: 2.9 times in the mean.
        factor = 1 if in_16_bits else 3
        assert noise[name][0] > 0
        assert cross[name][0] <= factor * 1.5 * noise[name][0]
        assert cross[name][1] <= factor * 3 * noise[name][1]


def test_answers_agree(results: Results, tell: Tell) -> None:
    said = results.answers
    n_prompts = len(said["vllm from vllm"])
    noise = agreement(said["transformers from transformers"], said["chunked from chunked"])
    tell(f"of {n_prompts} answers the same, with other chunks", noise)
    pairs = (
        ("transformers from transformers", "transformers from vllm"),
        ("vllm from vllm", "vllm from transformers"),
        ("transformers from transformers", "vllm from vllm"),
    )
    for one, other in pairs:
        count = agreement(said[one], said[other])
        tell(f"of {n_prompts} answers the same, {one} and {other}", count)
        assert count >= noise - slack(noise, count, n_prompts)
