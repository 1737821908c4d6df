"""Stored segments side by side, their keys turned to where they now stand."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from inferscale_sdk.errors import CorruptSegment  # noqa: E402
from inferscale_sdk.injection.pieces import Piece, gather, pieces_between  # noqa: E402
from inferscale_sdk.kv.layout import SegmentLayout  # noqa: E402
from inferscale_sdk.kv.segment import Segment  # noqa: E402
from inferscale_sdk.protocol import SegmentRef  # noqa: E402
from inferscale_sdk.rope.spec import RopeSpec  # noqa: E402
from inferscale_sdk.rope.table import RotaryTable  # noqa: E402

LAYOUT = SegmentLayout(n_layers=3, n_kv_heads=2, head_dim=8, dtype=torch.float32)
KEYS = ("a" * 40, "b" * 40, "c" * 40)
CPU = torch.device("cpu")
# Layers 0 and 1 turn alike, layer 2 has no positions.
TABLE = RotaryTable(RopeSpec.default(8, 10000.0), 64)
TABLES = (TABLE, TABLE, None)


def segment(key: str, n_tokens: int, origin: int) -> Segment:
    seed = torch.Generator().manual_seed(n_tokens)
    data = torch.randn(LAYOUT.shape(n_tokens), generator=seed)
    return Segment(key, data, origin, "0" * 32)


def turned(keys: torch.Tensor, old: int, new: int) -> torch.Tensor:
    """One key ``[kv_head, head_dim]``, the slow way: as complex numbers."""
    frequencies = torch.tensor([10000.0 ** (-2 * i / 8) for i in range(4)], dtype=torch.float64)
    angle = torch.polar(torch.ones(4, dtype=torch.float64), (new - old) * frequencies)
    whole = torch.complex(keys[:, :4].double(), keys[:, 4:].double()) * angle
    return torch.cat((whole.real, whole.imag), dim=1).float()


def test_each_token_is_turned_from_its_own_origin():
    segments = {KEYS[0]: segment(KEYS[0], 4, 0), KEYS[1]: segment(KEYS[1], 3, 20)}
    pieces = (Piece(KEYS[0], 1, 4, 5), Piece(KEYS[1], 0, 3, 8))

    data = gather(pieces, segments, LAYOUT, TABLES, device=CPU)

    assert data.shape == LAYOUT.shape(6)
    places = [(KEYS[0], 1, 1), (KEYS[0], 2, 2), (KEYS[0], 3, 3), (KEYS[1], 0, 20)]
    for token, (key, row, old) in enumerate(places):
        original = segments[key].data[:, :, row]  # [layer, kv, kv_head, head_dim]
        assert torch.equal(data[:, 1, token], original[:, 1])
        assert torch.equal(data[2, 0, token], original[2, 0])
        for layer in (0, 1):
            expected = turned(original[layer, 0], old, 5 + token)
            torch.testing.assert_close(data[layer, 0, token], expected, atol=2e-6, rtol=2e-6)


def test_at_its_own_origin_every_bit_stays():
    segments = {KEYS[0]: segment(KEYS[0], 4, 6)}

    data = gather((Piece(KEYS[0], 0, 4, 6),), segments, LAYOUT, TABLES, device=CPU)

    assert torch.equal(data, segments[KEYS[0]].data)
    assert data.data_ptr() != segments[KEYS[0]].data.data_ptr()


def test_what_does_not_fit_the_model_is_refused():
    other = Segment(KEYS[0], torch.zeros(3, 2, 4, 2, 6), 0, "0" * 32)
    piece = (Piece(KEYS[0], 0, 4, 0),)

    with pytest.raises(CorruptSegment, match="does not fit"):
        gather(piece, {KEYS[0]: other}, LAYOUT, TABLES, device=CPU)
    with pytest.raises(KeyError):
        gather(piece, {}, LAYOUT, TABLES, device=CPU)
    with pytest.raises(ValueError, match="without pieces"):
        gather((), {}, LAYOUT, TABLES, device=CPU)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 20), st.integers(0, 20))
def test_pieces_cover_the_span_without_gaps(lengths, one, other):
    refs = [SegmentRef(key=k, n_tokens=n) for k, n in zip(KEYS, lengths, strict=False)]
    total = sum(ref.n_tokens for ref in refs)
    first, last = sorted((min(one, total), min(other, total)))

    pieces = pieces_between(refs, first, last)

    assert sum(piece.stop - piece.start for piece in pieces) == last - first
    place = first
    for piece in pieces:
        assert piece.position == place
        place += piece.stop - piece.start
        before = sum(r.n_tokens for r in refs[: [r.key for r in refs].index(piece.key)])
        assert piece.position == before + piece.start
