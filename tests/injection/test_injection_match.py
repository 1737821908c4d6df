"""Which stored segments may stand for the start of a prompt."""

from dataclasses import dataclass

import pytest

from inferscale_sdk.injection.match import matching_prefix
from inferscale_sdk.kv.key import token_digest
from inferscale_sdk.protocol import Reason, SegmentRef

PROMPT = tuple(range(100, 130))
A, B, C = ("a" * 40, "b" * 40, "c" * 40)


@dataclass(frozen=True)
class Stored:
    n_tokens: int
    token_digest: str


def refs(*pairs: tuple[str, int]) -> list[SegmentRef]:
    return [SegmentRef(key=key, n_tokens=n) for key, n in pairs]


def stored(start: int, stop: int) -> Stored:
    return Stored(stop - start, token_digest(PROMPT[start:stop]))


WANTED = refs((A, 5), (B, 7), (C, 3))
ALL = {A: stored(0, 5), B: stored(5, 12), C: stored(12, 15)}


def match(known, segments=WANTED, prompt=PROMPT, reason=Reason.OK):
    return matching_prefix(segments, prompt, known.get, lambda _: Reason.MISSING, reason=reason)


def test_all_of_them():
    found = match(ALL)

    assert (found.end, found.missing, found.reason) == (15, (), Reason.OK)


def test_nothing_is_used_behind_a_gap_but_all_that_is_missing_is_named():
    found = match({A: ALL[A]})

    assert (found.end, found.missing, found.reason) == (5, (B, C), Reason.MISSING)


def test_a_missing_first_segment_leaves_nothing():
    found = match({B: ALL[B], C: ALL[C]})

    assert (found.end, found.missing) == (0, (A,))


def test_other_tokens_end_the_run():
    changed = (*PROMPT[:6], 1, *PROMPT[7:])

    found = match(ALL, prompt=changed)

    assert (found.end, found.missing, found.reason) == (5, (), Reason.TOKEN_MISMATCH)


def test_another_length_ends_the_run():
    found = match({**ALL, B: stored(5, 11)})

    assert (found.end, found.reason) == (5, Reason.TOKEN_MISMATCH)


def test_the_first_trouble_is_the_reason():
    found = match({A: Stored(5, "0" * 32)})

    assert (found.end, found.missing, found.reason) == (0, (B, C), Reason.TOKEN_MISMATCH)


@pytest.mark.parametrize(
    ("known", "reason"),
    [({A: ALL[A]}, Reason.LOAD_TIMEOUT), ({A: Stored(5, "0" * 32)}, Reason.TOKEN_MISMATCH)],
)
def test_absence_does_not_hide_what_was_known_before(known, reason):
    assert match(known, reason=Reason.LOAD_TIMEOUT).reason is reason


def test_the_store_says_why_a_key_is_absent():
    found = matching_prefix(WANTED, PROMPT, {A: ALL[A]}.get, lambda _: Reason.STORE_FAILED)

    assert found.reason is Reason.STORE_FAILED
