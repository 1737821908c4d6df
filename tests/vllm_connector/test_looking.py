"""Looking for keys aside of the engine's steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from inferscale_sdk.vllm_connector.looking import Looker
from inferscale_sdk.vllm_connector.metadata import Located, Order


def test_every_key_is_answered_once() -> None:
    with ThreadPoolExecutor(1) as executor:
        looker = Looker(executor, lambda keys: {"a": ("disk",), "b": ("disk", "remote")})
        looker.start(Order(7, ("a", "b", "c")), {"a"})
    assert looker.take() == [
        Located(7, "a", ("host", "disk")),
        Located(7, "b", ("disk", "remote")),
        Located(7, "c", ()),
    ]
    assert looker.take() == []


def test_what_cannot_be_looked_for_is_not_taken_for_gone() -> None:
    def broken(keys):
        raise OSError("the folder is away")

    with ThreadPoolExecutor(1) as executor:
        looker = Looker(executor, broken)
        looker.start(Order(7, ("a",)), set())
    assert looker.take() == [Located(7, "a", ("unknown",))]
