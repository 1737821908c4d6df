from __future__ import annotations

import math

import pytest

from inferscale_sdk.bench.quality.statistics import (
    bootstrap,
    mean_of_groups,
    useful_information,
)


def pooled(groups):
    return useful_information([triple for part in groups.values() for triple in part])


def test_useful_information_is_a_ratio_of_averages():
    # other, arm, full: 3.0 of 4.0 kept in sum, whatever single questions say
    assert useful_information([(5.0, 3.0, 2.0), (2.0, 1.0, 1.0)]) == pytest.approx(0.75)


def test_the_ends_of_the_scale():
    assert useful_information([(4.0, 2.0, 2.0)]) == 1.0
    assert useful_information([(4.0, 4.0, 2.0)]) == 0.0
    assert useful_information([(4.0, 1.0, 2.0)]) == 1.5
    assert math.isnan(useful_information([(2.0, 1.0, 2.0)]))


def test_conversations_weigh_the_same_in_their_mean():
    groups = {"a": [(2.0, 1.0, 1.0)] * 9, "b": [(2.0, 2.0, 1.0)]}
    assert mean_of_groups(groups) == pytest.approx(0.5)
    assert pooled(groups) == pytest.approx(0.9)


def test_the_bootstrap_is_paired():
    # NLLs differ wildly between questions, the arm is always exactly half way.
    triples = [(10.0 * i + 2.0, 10.0 * i + 1.0, 10.0 * i) for i in range(20)]
    interval = bootstrap({"a": triples}, pooled)
    assert (interval.low, interval.value, interval.high) == pytest.approx((0.5, 0.5, 0.5))
    assert interval.n == 20


def test_the_interval_holds_the_value_and_is_the_same_every_time():
    triples = [(4.0, 2.0 + (i % 5) / 2, 2.0) for i in range(30)]
    one, two = (bootstrap({"a": triples}, pooled, seed=3) for _ in range(2))
    assert one == two
    assert one.low < one.value < one.high
    assert bootstrap({"a": triples}, pooled, seed=4) != one
