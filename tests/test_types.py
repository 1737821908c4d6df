"""Namespaces: no two of them are ever taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_sdk.types import Namespace

IDS = st.none() | st.text(min_size=1, max_size=6).filter(lambda text: bool(text.strip()))


@pytest.mark.field_fault(14)
@given(one=st.tuples(IDS, IDS, IDS, IDS), other=st.tuples(IDS, IDS, IDS, IDS))
def test_different_namespaces_have_different_names(one, other) -> None:
    names = Namespace(*one).canonical(), Namespace(*other).canonical()
    assert (names[0] == names[1]) == (one == other)


@pytest.mark.field_fault(14)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"user_id": "a", "app_id": "b/c"}, {"user_id": "c", "app_id": "b/a"}),
        ({"user_id": "ann"}, {"user_id": "anna"}),
        ({"user_id": "ann"}, {"agent_id": "ann"}),
        ({"user_id": 'x","u","y'}, {"user_id": "y", "app_id": "x"}),
        ({"user_id": "a\x00b"}, {"user_id": "a"}),
        ({"user_id": "null"}, {"agent_id": "null"}),
    ],
)
def test_ids_that_contain_or_continue_each_other_stay_apart(one, other) -> None:
    first, second = Namespace(**one), Namespace(**other)
    assert first.partition != second.partition
    assert not first.covers(second) and not second.covers(first)
