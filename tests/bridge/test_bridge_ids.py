"""Ids from several places: together, or an error."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from inferscale_sdk.bridge import merge_ids, object_ids
from inferscale_sdk.errors import NamespaceError


def test_ids_of_several_places_add_up():
    assert merge_ids({"user_id": "ann"}, None, {"run_id": "r", "agent_id": None}) == {
        "user_id": "ann",
        "run_id": "r",
    }
    assert merge_ids({"user_id": "ann"}, {"user_id": "ann"}) == {"user_id": "ann"}


def test_two_different_ids_of_one_kind_are_an_error():
    with pytest.raises(NamespaceError, match=r"user_id.*'ann'.*'bob'"):
        merge_ids({"user_id": "ann"}, {"user_id": "bob"})


def test_ids_of_objects_and_mappings():
    owner = SimpleNamespace(user_id="ann", run_id=None, other="x")
    assert object_ids(owner) == {"user_id": "ann"}
    assert object_ids({"user_id": "ann", "other": 1}) == {"user_id": "ann"}


def test_an_id_that_is_not_a_string_is_never_left_out():
    """Left out, the call would be about whoever is meant by no id."""
    with pytest.raises(NamespaceError, match=r"user_id.*UUID.*str\(\.\.\.\)"):
        object_ids(SimpleNamespace(user_id=UUID(int=7)))
