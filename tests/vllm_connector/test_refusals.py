"""What is refused, and that the answer is then the plain one."""

from __future__ import annotations

import json
import random

import pytest
from connector_harness import Harness

from inferscale_sdk.protocol import EncodeOp, ForgetOp, PingOp, ProbeOp, StatsOp


@pytest.fixture(scope="module")
def fact(harness: Harness) -> tuple[str, list[int]]:
    tokens = harness.encode_text("- Zoe keeps bees on the roof of the old bakery.\n")
    (key,) = harness.encode(tokens + tokens[:1], [(0, len(tokens))], tag="refusals")
    return key, tokens


@pytest.fixture(scope="module")
def question(harness: Harness) -> list[int]:
    return harness.encode_text("Question: what does Zoe keep?\nAnswer:")


def test_salt_is_required_and_bound(harness, fact, question) -> None:
    key, tokens = fact
    op, good = harness.inject_op([(key, len(tokens))])
    plain = harness.ask(tokens + question, n=6)
    for salt, reason in ((None, "no_salt"), ("abc", "wrong_salt"), (good[:-1] + "x", "wrong_salt")):
        out = harness.ask(tokens + question, op, salt=salt, n=6)
        assert out.answer["reason"] == reason
        assert out.answer["claimed_tokens"] == 0
        assert out.n_cached == 0
        assert out.token_ids == plain.token_ids


def test_tokens_are_checked_against_the_prompt(harness, fact, question) -> None:
    key, tokens = fact
    other = [*tokens[:3], tokens[3] + 1, *tokens[4:]]
    out = harness.inject(other + question, [(key, len(tokens))])
    assert (out.answer["reason"], out.n_cached) == ("token_mismatch", 0)
    short = harness.inject(tokens + question, [(key, len(tokens) - 1)])
    assert (short.answer["reason"], short.n_cached) == ("token_mismatch", 0)


def test_another_models_key_is_refused(harness, fact, question) -> None:
    key, tokens = fact
    op, salt = harness.inject_op([(key, len(tokens))])
    out = harness.ask(
        tokens + question, op.model_copy(update={"fingerprint": "0" * 32}), salt=salt, n=2
    )
    assert (out.answer["reason"], out.n_cached) == ("wrong_model", 0)


def test_unknown_key_is_prefilled_from_there_on(harness, fact, question) -> None:
    key, tokens = fact
    out = harness.inject(tokens + tokens + question, [(key, len(tokens)), ("f" * 40, len(tokens))])
    assert out.n_cached == len(tokens)
    assert out.answer["missing_keys"] == ["f" * 40]
    assert out.answer["reason"] == "missing"


def test_prompt_wholly_covered_leaves_one_token(harness, fact) -> None:
    key, tokens = fact
    out = harness.inject(tokens, [(key, len(tokens))])
    assert out.n_cached == len(tokens) - 1
    assert out.answer["loaded_tokens"] == len(tokens) - 1


def test_500_malformed_objects(harness, fact, question) -> None:
    key, tokens = fact
    prompt = tokens + question
    plain = harness.ask(prompt, n=3)
    good, salt = harness.inject_op([(key, len(tokens))])
    shapes = [
        json.loads(op.model_dump_json())
        for op in (
            good,
            EncodeOp(
                fingerprint=harness.fingerprint, captures=({"key": key, "start": 0, "stop": 4},)
            ),
            ForgetOp(keys=("a" * 40,)),
            ProbeOp(),
            PingOp(),
            StatsOp(),
        )
    ]
    rng = random.Random(11)
    requests = [(prompt, mangle(rng, rng.choice(shapes)), salt) for _ in range(500)]
    for start in range(0, 500, 50):
        for out in harness.ask_many(requests[start : start + 50], n=3):
            assert out.token_ids == plain.token_ids
            assert out.answer["op"] == "refused", out.answer
            assert out.answer["reason"] in {"malformed", "unsupported_version"}
            assert out.answer["message"]
    assert harness.inject(prompt, [(key, len(tokens))]).n_cached == len(tokens)


JUNK = [None, 7, -1, 3.5, "", "x" * 300, [], {}, [[]], True, "\x00", {"a": []}]


def mangle(rng: random.Random, good: dict) -> object:
    """An object that is wrong in one place, or no object at all."""
    bad = json.loads(json.dumps(good))
    match rng.randrange(6):
        case 0:
            return rng.choice([7, "text", [], [good], True, 1.5, {}])
        case 1:
            bad["v"] = rng.choice([0, 2, "1", 1.0, None, True, [1]])
        case 2:
            bad["op"] = rng.choice(["", "Inject", "drop", None, 3, ["inject"]])
        case 3:
            bad[f"field{rng.randrange(9)}"] = rng.choice(JUNK)
        case 4:
            del bad[rng.choice(["v", "op"])]
        case _:
            bad["mac"] = rng.choice([1, "", "zz", "a" * 63, ["a"]])
    return bad


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 10_000), (3, 2), (-1, 4), (5, 5)],
    ids=["past-end", "reversed", "neg", "empty"],
)
def test_captures_out_of_range(harness, fact, start, stop) -> None:
    raw = {
        "v": 1,
        "op": "encode",
        "fingerprint": harness.fingerprint,
        "captures": [{"key": "b" * 40, "start": start, "stop": stop}],
    }
    assert harness.ask(fact[1], raw, n=2).answer["reason"] == "malformed"


def test_segments_longer_than_the_prompt(harness, fact) -> None:
    key, tokens = fact
    out = harness.inject(tokens, [(key, len(tokens)), ("a" * 40, 5)])
    assert out.answer["op"] == "refused"
    assert out.answer["reason"] == "malformed"


def test_probe_of_a_mixed_prompt_is_refused(harness, fact) -> None:
    out = harness.ask((fact[1] * 40)[:256], ProbeOp(), n=2)
    assert out.answer["op"] == "refused"
