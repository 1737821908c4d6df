"""A client that reaches the server but lacks its secret: refused before anything is looked up.

The proof is by what the server touches, not by the clock: an operation on a key that is there and
one on a key that is not go the same way and count the same. One measurement of time is recorded
beside it, and not judged.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from connector_harness import Harness, Outcome

from inferscale_sdk.config import settings
from inferscale_sdk.protocol import (
    PROBE_TOKENS,
    CaptureSpan,
    EncodeOp,
    ForgetOp,
    InjectOp,
    LocateOp,
    Operation,
    PingOp,
    PrefetchOp,
    ProbeOp,
    SegmentRef,
    StatsOp,
    salt_suffix,
    sign,
)
from inferscale_sdk.vllm_connector.index import SegmentIndex
from inferscale_sdk.vllm_connector.looking import Looker

SECRET = b"the server's own secret"
NOWHERE = "d" * 40
TEXT = "- Yusuf hides the spare key of the boathouse under the third flowerpot on the left.\n"


@pytest.fixture(scope="module")
def fact(harness: Harness) -> tuple[str, list[int]]:
    """Somebody's fact, stored before the server was given a secret; more than a block long."""
    tokens = harness.encode_text(TEXT * 8)
    (key,) = harness.encode(tokens + tokens[:1], [(0, len(tokens))], tag="owner")
    return key, tokens


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    monkeypatch.setenv("INFERSCALE_SERVER_SECRET", SECRET.decode())
    settings.cache_clear()
    yield SECRET
    monkeypatch.undo()
    settings.cache_clear()


def operations(harness: Harness, key: str, tokens: list[int]) -> dict[str, tuple[list[int], Any]]:
    """Every operation that names something, with its prompt."""
    n = len(tokens)
    return {
        "inject": (
            [*tokens, 5],
            InjectOp(fingerprint=harness.fingerprint, segments=(SegmentRef(key=key, n_tokens=n),)),
        ),
        "encode": (
            [*tokens, 5],
            EncodeOp(
                fingerprint=harness.fingerprint,
                captures=(CaptureSpan(key=key, start=0, stop=n),),
            ),
        ),
        "forget": ([5], ForgetOp(keys=(key,))),
        "locate": ([5], LocateOp(keys=(key,))),
        "prefetch": ([5], PrefetchOp(keys=(key,))),
        "stats": ([5], StatsOp(report_ids=("mine",))),
        "ping": ([5], PingOp()),
        "probe": ([harness.ping.probe_token_id] * PROBE_TOKENS, ProbeOp()),
    }


KINDS = ("inject", "encode", "forget", "locate", "prefetch", "stats", "ping", "probe")


def bad_signatures(op: Operation, prompt: list[int]) -> dict[str, Operation]:
    return {
        "none": op,
        "another secret": sign(op, prompt, b"a guess of the secret"),
        "other tokens": sign(op, [*prompt, 7], SECRET),
        "another operation": op.model_copy(update={"mac": sign(StatsOp(), prompt, SECRET).mac})
        if not isinstance(op, StatsOp)
        else op.model_copy(update={"mac": sign(PingOp(), prompt, SECRET).mac}),
        "zeros": op.model_copy(update={"mac": "0" * 64}),
    }


@contextmanager
def watching(harness: Harness) -> Iterator[list[str]]:
    """Everything that would look a key up, list something, or touch a segment meanwhile."""
    touched: list[str] = []
    undo = []

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def spy(*args: Any, **kwargs: Any) -> Any:
            touched.append(name)
            return original(*args, **kwargs)

        setattr(owner, name, spy)
        undo.append((owner, name, original))

    for name in ("get", "fetch", "unanswered", "why_absent", "pin", "remove", "add"):
        watch(SegmentIndex, name)
    watch(Looker, "start")
    for name in ("_forget", "_start_read", "_keep", "_load_one"):
        watch(type(harness.worker), name)
    try:
        yield touched
    finally:
        for owner, name, original in undo:
            setattr(owner, name, original)


def ask(harness: Harness, prompt: list[int], op: Any, salt: str | None = "") -> Outcome:
    if isinstance(op, InjectOp) and salt == "":
        salt = f"{secrets.token_hex(8)}:{salt_suffix([s.key for s in op.segments])}"
    return harness.ask(prompt, op, salt=salt, n=3)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_looked_up_for_an_unsigned_operation(harness, fact, secret, kind) -> None:
    key, tokens = fact
    seen = []
    for asked in (key, NOWHERE):
        prompt, op = operations(harness, asked, tokens)[kind]
        plain = harness.ask(prompt, n=3)
        for signature, sent in bad_signatures(op, prompt).items():
            counters = dict(harness.scheduler._core.counters)
            with watching(harness) as touched:
                out = ask(harness, prompt, sent)
            assert touched == [], signature
            assert out.answer["op"] == "refused", (signature, out.answer)
            assert out.answer["reason"] == "bad_signature"
            # The request itself is served as text, computed from its first token.
            assert (out.n_cached, out.token_ids) == (0, plain.token_ids)
            after = harness.scheduler._core.counters
            grown = {k: v - counters.get(k, 0) for k, v in after.items()}
            seen.append((out.answer, {k: v for k, v in grown.items() if v}))
    # Known or unknown, well signed or not at all: the same answer and the same counters.
    assert all(entry == seen[0] for entry in seen)


def test_what_is_there_stays_and_serves_its_owner(harness, fact, secret) -> None:
    key, tokens = fact
    for kind in ("forget", "encode"):
        prompt, op = operations(harness, key, tokens)[kind]
        ask(harness, prompt, op)
    found = ask(harness, [5], sign(LocateOp(keys=(key,)), [5], secret)).answer["found"]
    assert set(found[key]) == {"disk", "host"}
    prompt, op = operations(harness, key, tokens)["inject"]
    out = ask(harness, prompt, sign(op, prompt, secret))
    assert (out.answer["reason"], out.n_cached) == ("", len(tokens))


def test_reports_of_others_are_not_told(harness, fact, secret) -> None:
    key, tokens = fact
    prompt, op = operations(harness, key, tokens)["inject"]
    op = op.model_copy(update={"report_id": "mine"})
    ask(harness, prompt, sign(op, prompt, secret))
    answer = ask(harness, [5], StatsOp(report_ids=("mine",))).answer
    assert answer.keys() == {"v", "op", "reason", "message"}
    told = ask(harness, [5], sign(StatsOp(report_ids=("mine",)), [5], secret)).answer
    assert told["reports"]["mine"]["claimed_tokens"] == len(tokens)


# -- salts ---------------------------------------------------------------------------------


@pytest.mark.field_fault(8)
def test_no_guessed_salt_finds_anothers_blocks(harness, fact, secret) -> None:
    """The owner's blocks lie in vLLM's prefix cache; without the salt's secret part none is hit."""
    key, tokens = fact
    prompt, op = operations(harness, key, tokens)["inject"]
    suffix = salt_suffix([key])
    own = f"ifs1:{secrets.token_hex(16)}:{suffix}"
    ask(harness, prompt, sign(op, prompt, secret), own)
    again = ask(harness, prompt, sign(op, prompt, secret), own)
    assert again.answer["local_tokens"] >= 128  # they are there, for the owner
    prefix = own.rsplit(":", 1)[0]
    guesses = [
        None,
        suffix,
        f":{suffix}",
        prefix,
        f"{prefix}:",
        f"{prefix}:{salt_suffix([NOWHERE])}",
        f"{prefix}:text",
        own.upper(),
        own + " ",
        own[:-1],
        f"ifs1:{secrets.token_hex(16)}:{suffix}",
    ]
    for i, guess in enumerate(guesses):
        # As plain text, or with an operation: not with both, since the first would leave blocks of
        # its own for the second.
        out = ask(harness, prompt, op, guess) if i % 2 else harness.ask(prompt, salt=guess, n=2)
        assert out.n_cached == 0, guess


# -- replays -------------------------------------------------------------------------------


def test_a_replay_is_good_for_the_very_same_prompt_only(harness, fact, secret) -> None:
    key, tokens = fact
    prompt, op = operations(harness, key, tokens)["inject"]
    signed = sign(op, prompt, secret)
    first = ask(harness, prompt, signed)
    # Word for word it brings the answer to a prompt that the replayer had to know already.
    assert ask(harness, prompt, signed).token_ids == first.token_ids
    # With another question behind the same memory, or with part of it, it is refused.
    for other in ([*tokens, 6], [*prompt, 6], prompt[:-1], [*tokens[:-1], 5], [6, *prompt]):
        out = ask(harness, other, signed)
        assert (out.answer["reason"], out.n_cached) == ("bad_signature", 0)
    # So is the same object with another key, order or length in it.
    changed = signed.model_copy(update={"segments": (SegmentRef(key=NOWHERE, n_tokens=3),)})
    assert ask(harness, prompt, changed).answer["reason"] == "bad_signature"


def test_a_replay_after_deletion_finds_nothing(harness, secret) -> None:
    tokens = harness.encode_text("- Wanda was born on a ferry between two islands.\n" * 3)
    prompt = [*tokens, 5]
    key = "9" * 40
    span = CaptureSpan(key=key, start=0, stop=len(tokens))
    encode = EncodeOp(fingerprint=harness.fingerprint, captures=(span,))
    assert ask(harness, prompt, sign(encode, prompt, secret)).answer["stored"] == [key]
    _, op = operations(harness, key, tokens)["inject"]
    signed = sign(op, prompt, secret)
    assert ask(harness, prompt, signed).answer["reason"] == ""
    ask(harness, [5], sign(ForgetOp(keys=(key,)), [5], secret))
    out = ask(harness, prompt, signed)
    assert (out.answer["missing_keys"], out.n_cached) == ([key], 0)


# -- time ----------------------------------------------------------------------------------


@pytest.mark.field_fault(8)
def test_the_time_of_a_refusal_is_recorded(harness, fact, secret, record_property) -> None:
    """Measured and recorded; the proof that both go one way is above."""
    key, tokens = fact
    took: dict[str, list[float]] = {"known": [], "unknown": []}
    pair = [("known", key), ("unknown", NOWHERE)]
    for i in range(4):
        # Each goes first as often: whoever comes second finds warmer caches.
        for name, asked in pair if i % 2 else pair[::-1]:
            prompt, op = operations(harness, asked, tokens)["inject"]
            started = time.perf_counter()
            assert ask(harness, prompt, op).answer["reason"] == "bad_signature"
            took[name].append(time.perf_counter() - started)
    for name, times in took.items():
        median = statistics.median(times) * 1e3
        record_property(f"refusal_of_{name}_key_ms", round(median, 2))
