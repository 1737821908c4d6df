"""Two readings of the same tokens as one."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from inferscale_sdk.errors import CorruptSegment  # noqa: E402
from inferscale_sdk.injection.mean import averaged  # noqa: E402
from inferscale_sdk.injection.pieces import Piece, gather  # noqa: E402
from inferscale_sdk.kv.layout import SegmentLayout  # noqa: E402
from inferscale_sdk.kv.segment import Segment  # noqa: E402
from inferscale_sdk.protocol import Reason  # noqa: E402
from inferscale_sdk.rope.spec import RopeSpec  # noqa: E402
from inferscale_sdk.rope.table import RotaryTable  # noqa: E402

CPU = torch.device("cpu")
TABLE = RotaryTable(RopeSpec.default(8, 10000.0), 64)
TABLES = (TABLE, None)  # layer 1 has no positions
ONE, OTHER = "a" * 40, "b" * 40


def reading(key, origin, seed, dtype=torch.float32, digest="0" * 32):
    layout = SegmentLayout(n_layers=2, n_kv_heads=2, head_dim=8, dtype=dtype)
    data = torch.randn(layout.shape(3), generator=torch.Generator().manual_seed(seed))
    return Segment(key, data.to(dtype), origin, digest, "0f")


def test_values_are_averaged_and_keys_where_the_second_reading_has_them():
    second, first = reading(ONE, 20, 1), reading(OTHER, 5, 2)

    mean, reason = averaged(second, first, TABLES, device=CPU)

    assert not reason
    assert (mean.key, mean.origin, mean.owner) == (ONE, 20, "0f")
    assert torch.equal(mean.data[:, 1], (second.data[:, 1] + first.data[:, 1]) / 2)
    assert torch.equal(mean.data[1, 0], (second.data[1, 0] + first.data[1, 0]) / 2)
    turned = gather([Piece(OTHER, 0, 3, 20)], {OTHER: first}, first.layout, TABLES, device=CPU)
    assert not torch.equal(turned[0, 0], first.data[0, 0])
    assert torch.equal(mean.data[0, 0], (second.data[0, 0] + turned[0, 0]) / 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_reading_with_itself_stays_as_it_is(dtype):
    one = reading(ONE, 7, 3, dtype)

    mean, reason = averaged(one, reading(OTHER, 7, 3, dtype), TABLES, device=CPU)

    assert not reason
    assert mean == one


def test_half_precision_is_averaged_without_overflow():
    one, other = reading(ONE, 0, 1, torch.float16), reading(OTHER, 0, 1, torch.float16)
    for segment in (one, other):
        segment.data[:, 1] = 60_000.0

    mean, _ = averaged(one, other, TABLES, device=CPU)

    assert torch.equal(mean.data[:, 1], one.data[:, 1])


def test_what_is_not_there_or_of_other_tokens_is_told():
    one = reading(ONE, 0, 1)

    assert averaged(one, None, TABLES, device=CPU) == (one, Reason.MISSING)
    of_somebody_else = replace(reading(OTHER, 0, 1), owner="1f")
    assert averaged(one, of_somebody_else, TABLES, device=CPU) == (one, Reason.MISSING)
    other = reading(OTHER, 0, 1, digest="1" * 32)
    assert averaged(one, other, TABLES, device=CPU) == (one, Reason.TOKEN_MISMATCH)


def test_another_models_segment_is_refused():
    other = Segment(OTHER, torch.zeros(2, 2, 3, 2, 6), 0, "0" * 32, "0f")

    with pytest.raises(CorruptSegment, match="does not fit"):
        averaged(reading(ONE, 0, 1), other, TABLES, device=CPU)
