from __future__ import annotations

from datetime import UTC, datetime

import pytest

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.ingest.progress import EncodeProgress
from inferscale_sdk.ingest.retry import Parking, RetryPolicy
from inferscale_sdk.types import Fact, Namespace

NOW = datetime(2024, 1, 1, tzinfo=UTC)


def fact(i, version=1):
    return Fact(f"f{i}", version, "text", Namespace(user_id="u"), "c", 0, NOW, NOW)


@pytest.mark.parametrize("failures", [1, 2, 5, 40, 10_000])
def test_delays_grow_to_a_limit(failures):
    policy = RetryPolicy(base_seconds=1.0, max_seconds=30.0)
    full = min(2.0 ** min(failures - 1, 32), 30.0)
    for _ in range(20):
        assert full / 2 <= policy.delay(failures) <= full


def test_delays_are_jittered():
    assert len({RetryPolicy().delay(3) for _ in range(10)}) > 1


@pytest.mark.parametrize("kwargs", [{"base_seconds": 0}, {"max_seconds": 0.1}, {"max_attempts": 0}])
def test_bad_policies_are_refused(kwargs):
    with pytest.raises(ConfigurationError, match="retry policy"):
        RetryPolicy(**kwargs)


def test_a_parked_fact_comes_back_until_it_is_given_up():
    now = [0.0]
    parking = Parking(RetryPolicy(1.0, 10.0, max_attempts=2), clock=lambda: now[0])
    one = fact(1)
    assert parking.ready([one])
    parking.fail([one])
    assert not parking.ready([one]) and not parking.is_final(one)
    assert 0.5 <= parking.next_retry_in() <= 1.0
    now[0] = 1.0
    assert parking.ready([one])
    assert parking.next_retry_in() == 0.0
    parking.fail([one])
    assert parking.is_final(one) and parking.next_retry_in() is None
    assert parking.ready([fact(1, version=2)]), "another text is another chance"
    parking.release([one])
    assert parking.ready([one]) and len(parking) == 0


def test_progress_adds_up():
    a = EncodeProgress(encoded=1, prompt_tokens=20, own_tokens=10, pending=5)
    b = EncodeProgress(encoded=2, prompt_tokens=10, own_tokens=5, pending=3, reason="why")
    both = a.plus(b)
    assert (both.encoded, both.prompt_tokens, both.pending, both.reason) == (3, 30, 3, "why")
    assert both.overhead == 2.0
    assert EncodeProgress().overhead == 0.0


def test_facts_parked_together_come_back_together_whatever_time_passes_meanwhile():
    """Looking at one fact after another must not find a later time for the second."""
    now = [0.0]

    def ticking():
        now[0] += 0.3
        return now[0]

    parking = Parking(RetryPolicy(base_seconds=1.0, max_seconds=1.0, max_attempts=3), ticking)
    facts = [fact(n) for n in range(20)]
    parking.fail(facts)
    found = [len(parking.ready(facts)) for _ in range(8)]
    assert set(found) == {0, 20}
