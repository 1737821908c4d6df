"""From token ids to text, piece by piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_sdk.engines.transformers.text import TextStream
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer

TOKENIZER = FakeTokenizer()


def pieces_of(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """What comes out for the bytes of ``text``, until a stop string appears."""
    stream = TextStream(TOKENIZER.decode, stop)
    pieces = []
    for token in TOKENIZER.encode_plain(text):
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    pieces.append(stream.finish())
    return pieces, stream


@given(st.text(max_size=40))
def test_the_pieces_are_the_text(text):
    pieces, stream = pieces_of(text)

    assert "".join(pieces) == text
    assert not stream.stopped


@given(st.text(alphabet="abcé", max_size=30), st.lists(st.text(alphabet="abcé", max_size=4)))
def test_the_text_ends_before_the_first_stop_string(text, stop):
    pieces, stream = pieces_of(text, tuple(stop))

    # The slow way: the shortest beginning that contains a stop string is where it is noticed.
    wanted = [s for s in stop if s]
    seen = next(
        (text[:n] for n in range(1, len(text) + 1) if any(s in text[:n] for s in wanted)), None
    )
    assert stream.stopped == (seen is not None)
    expected = text if seen is None else seen[: min(seen.find(s) for s in wanted if s in seen)]
    assert "".join(pieces) == expected


def test_a_character_is_held_back_until_it_is_whole():
    pieces, _ = pieces_of("a€b")

    assert pieces == ["a", "", "", "€", "b", ""]


def test_a_character_that_never_becomes_whole_is_shown_as_such():
    stream = TextStream(TOKENIZER.decode)

    assert stream.push("€".encode()[0]) == ""
    assert stream.finish() == "\ufffd"


def test_a_beginning_of_a_stop_string_is_held_back():
    pieces, _ = pieces_of("x##y", ("###",))

    assert pieces == ["x", "", "", "##y", ""]


def test_what_was_held_back_comes_at_the_end():
    pieces, stream = pieces_of("x##", ("###",))

    assert pieces == ["x", "", "", "##"]
    assert not stream.stopped


@pytest.mark.parametrize("stop", [(), ("",)])
def test_an_empty_stop_string_stops_nothing(stop):
    assert "".join(pieces_of("abc", stop)[0]) == "abc"
