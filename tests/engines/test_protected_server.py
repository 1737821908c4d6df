"""A server with a secret, over HTTP: what a client without it gets, and what ``/metrics`` says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from inferscale_sdk import VLLMEngine
from inferscale_sdk.engines.base import Sampling
from inferscale_sdk.errors import EngineError, IncompatibleModel
from inferscale_sdk.ingest.windows import PrecedingTurns
from inferscale_sdk.memory import Memory
from inferscale_sdk.prompt.base import EncodePlan
from inferscale_sdk.protocol import CaptureSpan, EncodeOp
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.vllm_connector.metrics_catalog import METRICS, PREFIX

pytestmark = pytest.mark.engine

SECRET = b"the server's own secret"
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
_SAMPLE = re.compile(r"^(inferscale:\w+)\{(.*)\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def protected(model_path, tmp_path_factory) -> Iterator[VLLMEngine]:
    folder = tmp_path_factory.mktemp("protected")
    with VLLMEngine.launch(
        model_path,
        served_model_name="smollm2",
        disk_path=folder / "kv",
        log_path=folder / "server.log",
        max_model_len=4096,
        secret=SECRET,
    ) as engine:
        assert engine.info().can_inject
        yield engine


@pytest.fixture
def stranger(protected) -> Iterator[VLLMEngine]:
    with VLLMEngine(protected.base_url, tokenizer=protected.tokenizer, retries=0) as engine:
        yield engine


@pytest.fixture
def memory(protected, tmp_path) -> Iterator[Memory]:
    with Memory(
        protected,
        path=tmp_path,
        embedder=FakeEmbedder(),
        window=PrecedingTurns(2),
        live_facts=0,
        background=False,
    ) as memory:
        memory.add([f"On day {i} Vera repaired bicycle number {i}." for i in range(6)], user_id="v")
        assert memory.wait_encoded(120)
        yield memory


def metrics(engine: VLLMEngine) -> dict[str, float]:
    """Every sample of the connector, as ``name{label}``; vLLM's own labels are left out."""
    text = httpx.get(f"{engine.base_url}/metrics", timeout=10).text
    found: dict[str, float] = {}
    for name, labels, value in _SAMPLE.findall(text):
        own = [part for part in labels.split(",") if part.split("=")[0] in OWN_LABELS]
        if not name.endswith("_created"):
            found[f"{name}{{{','.join(own)}}}" if own else name] = float(value)
    return found


OWN_LABELS = {metric.label for metric in METRICS.values() if metric.label}


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}


def test_without_the_secret_memory_is_text_and_says_why(protected, stranger) -> None:
    info = stranger.info()
    assert not info.can_inject and "INFERSCALE_SERVER_SECRET" in info.reason
    assert not info.fingerprint  # not even the model's fingerprint is told
    for ask in (
        lambda: stranger.forget(["a" * 40]),
        lambda: stranger.locate(["a" * 40]),
        lambda: stranger.stats(["a"]),
    ):
        with pytest.raises(EngineError, match="signature"):
            ask()
    op = EncodeOp(fingerprint="x", captures=(CaptureSpan(key="a" * 40, start=0, stop=2),))
    plan = EncodePlan(
        token_ids=(1, 2, 3), op=op, fact_ids=(), context_fact_ids=(), captures_preamble=False
    )
    with pytest.raises(IncompatibleModel):
        stranger.encode(plan)


def test_an_unsigned_client_cannot_inject_forget_or_find_what_is_there(
    protected, stranger, memory
) -> None:
    plan = memory.prepare("What did Vera repair on day 3?", user_id="v", max_tokens=4)
    keys = [segment.key for segment in plan.segments]
    assert len(keys) > 1
    before = metrics(protected)
    body = {
        "model": "smollm2",
        "prompt": list(plan.token_ids),
        "max_tokens": 2,
        "temperature": 0,
        "cache_salt": plan.cache_salt,
    }
    for op in (
        plan.operation(None).model_dump(mode="json", exclude_none=True),
        {"v": 1, "op": "forget", "keys": keys},
        {"v": 1, "op": "locate", "keys": keys},
        {"v": 1, "op": "stats"},
        {"v": 1, "op": "ping"},
    ):
        sent = body | {"kv_transfer_params": {"inferscale": op}}
        sent["cache_salt"] = "mine:" + plan.cache_salt.rsplit(":", 1)[1]
        answer = httpx.post(f"{protected.base_url}/v1/completions", json=sent, timeout=60).json()
        assert answer["kv_transfer_params"]["inferscale"]["reason"] == "bad_signature"
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] in (0, None) or (
            op["op"] != "inject"  # later ones find the blocks of their own first request
        )
    assert grown(before, metrics(protected)) == {
        'inferscale:refusals_total{reason="bad_signature"}': 5
    }
    assert set(protected.locate(keys)) == set(keys)


def test_metrics_grow_by_exactly_what_a_request_injected(protected, memory) -> None:
    plan = memory.prepare("What did Vera repair on day 5?", user_id="v", max_tokens=4)
    memory.complete(plan, sampling=Sampling(max_tokens=2))  # learns the preamble, if need be
    # Under a fresh salt, so that vLLM's own cache has none of it.
    plan = replace(plan, cache_salt="ifs1:metrics:" + plan.cache_salt.rsplit(":", 1)[1])
    before = metrics(protected)
    report = memory.complete(plan, sampling=Sampling(max_tokens=2)).report
    assert report.reason == "" and report.cached_tokens == 0
    n, segments = report.injected_tokens, len(plan.segments)
    assert n == sum(segment.n_tokens for segment in plan.segments) > 50
    rest = grown(before, metrics(protected))
    seconds = rest.pop("inferscale:load_seconds_total")
    assert 0 < seconds < 10
    assert rest == {
        'inferscale:injections_total{result="injected"}': 1,
        "inferscale:verified_tokens_total": n,
        "inferscale:verified_segments_total": segments,
        "inferscale:claimed_tokens_total": n,
        "inferscale:claimed_segments_total": segments,
        "inferscale:loaded_tokens_total": n,
        "inferscale:loaded_segments_total": segments,
        "inferscale:loaded_bytes_total": n * protected.info().bytes_per_token,
    }


def test_a_shortfall_is_counted_by_its_reason_and_a_deletion_by_tier(protected, memory) -> None:
    plan = memory.prepare("What did Vera repair on day 2?", user_id="v", max_tokens=4)
    memory.complete(plan, sampling=Sampling(max_tokens=2))
    lost = plan.segments[-1].key
    before = metrics(protected)
    assert protected.forget([lost]) == 1
    plan = replace(plan, cache_salt="ifs1:short:" + plan.cache_salt.rsplit(":", 1)[1])
    protected.generate(plan, Sampling(max_tokens=2))
    rest = grown(before, metrics(protected))
    assert rest['inferscale:shortfalls_total{reason="missing"}'] == 1
    assert rest["inferscale:forgotten_segments_total"] == 1
    assert rest['inferscale:tier_segments{tier="host"}'] == -1
    assert rest['inferscale:tier_deletions_total{tier="disk"}'] == 1


def test_every_metric_of_the_dashboard_is_there(protected) -> None:
    text = httpx.get(f"{protected.base_url}/metrics", timeout=10).text
    there = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    used = set(re.findall(r"inferscale:\w+", DASHBOARD.read_text()))
    assert used <= there | {f"{name}_total" for name in there}, used - there
    every = {
        PREFIX + name + ("_total" if m.kind == "counter" else "") for name, m in METRICS.items()
    }
    assert used == every
