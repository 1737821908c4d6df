import pytest

from inferscale_sdk.bench.speed.counters import (
    EXTERNAL_HITS,
    counter_total,
    read_counter,
    settled_counter,
)
from inferscale_sdk.errors import EngineUnavailable

EXPOSITION = """\
# HELP vllm:external_prefix_cache_hits_total External prefix cache hits.
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="a b"} 1301.0
vllm:external_prefix_cache_hits_total{engine="1",model_name="a b"} 2.0
vllm:external_prefix_cache_hits_created{engine="0",model_name="a b"} 1.76e+09
vllm:external_prefix_cache_queries_total{engine="0",model_name="a b"} 9000.0
"""


def test_a_counter_is_summed_over_its_labels_and_over_nothing_else():
    assert counter_total(EXPOSITION, EXTERNAL_HITS) == 1303
    assert counter_total(EXPOSITION, "vllm:external_prefix_cache_queries_total") == 9000


def test_a_counter_that_is_not_there_is_zero():
    assert counter_total("", EXTERNAL_HITS) == 0


def test_waits_for_a_counter_that_trails():
    values = iter([3, 3, 8, 12])
    slept = []

    assert settled_counter(lambda: next(values), at_least=8, sleep=slept.append) == 8
    assert len(slept) == 2


def test_gives_the_last_value_of_a_counter_that_stays_behind():
    assert settled_counter(lambda: 5, at_least=8, timeout_seconds=1, sleep=lambda _: None) == 5


def test_a_silent_server_is_an_engine_error():
    with pytest.raises(EngineUnavailable, match="/metrics does not answer"):
        read_counter("http://127.0.0.1:9", EXTERNAL_HITS)
