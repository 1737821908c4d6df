"""The probe's judgement on made-up layers."""

import pytest

torch = pytest.importorskip("torch")

from inferscale_sdk.injection.probe import judge, probe_token  # noqa: E402
from inferscale_sdk.rope.rotate import rotate  # noqa: E402
from inferscale_sdk.rope.spec import RopeSpec  # noqa: E402
from inferscale_sdk.rope.table import RotaryTable  # noqa: E402

N = 256
NAMES = ("layers.0", "layers.1")
SPEC = RopeSpec.default(16, 10000.0)


def table(spec=SPEC, rounding=torch.bfloat16):
    return RotaryTable(spec, N, rounding=rounding)


def written(*tables):
    """What a model that turns its keys by ``tables`` writes for one token repeated."""
    seed = torch.Generator().manual_seed(3)
    data = torch.randn(len(tables), 2, 1, 2, 16, generator=seed).expand(-1, -1, N, -1, -1).clone()
    positions = torch.arange(N)
    for layer, turning in zip(data, tables, strict=True):
        if turning is not None:
            cos, sin = turning.moves(torch.zeros_like(positions), positions)
            spec = turning.spec
            layer[0] = rotate(
                layer[0], cos, sin, interleaved=spec.interleaved, rotary_dim=spec.rotary_dim
            )
    return data.bfloat16()


def verdict(data, *candidates):
    return judge(data, candidates, NAMES, tolerance=0.02)


def test_the_right_tables_are_exact_and_the_best_rounding_is_found():
    data = written(table(), None)

    found = verdict(data, (table(rounding=None), None), (table(), None))

    assert found.verdict.status == "exact"
    assert found.candidate == 1
    assert found.verdict.max_key_error < 2**-7  # one unit of bfloat16
    assert found.verdict.max_value_drift == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        RopeSpec.default(16, 500000.0),
        RopeSpec.default(16, 10000.0, interleaved=True),
        RopeSpec.linear(16, 10000.0, factor=2.0),
        RopeSpec.default(16, 10000.0, rotary_dim=8),
    ],
    ids=["base", "pairing", "scaling", "channels"],
)
def test_a_wrong_rotation_is_text_only_and_names_the_layer(wrong):
    found = verdict(written(None, table()), (None, table(wrong)))

    assert found.verdict.status == "text_only"
    assert found.verdict.worst_layer == "layers.1"
    assert "layers.1" in found.verdict.reason


def test_each_kind_of_layer_has_its_own_errors():
    wrong = table(RopeSpec.default(16, 500000.0))
    right = (table(), table(RopeSpec.default(16, 10000.0, rotary_dim=8)), None)
    data = written(*right)
    windows = (None, 128, None)

    found = judge(data, [right], ("a", "b", "c"), tolerance=0.02, windows=windows).verdict
    broken = judge(data, [(wrong, *right[1:])], ("a", "b", "c"), tolerance=0.02).verdict

    assert [(layer.kind, layer.n_layers) for layer in found.layers] == [
        ("default, 16 of 16 channels", 1),
        ("default, 8 of 16 channels, window 128", 1),
        ("no rotary positions", 1),
    ]
    assert found.max_key_error == max(layer.key_error for layer in found.layers)
    assert [layer.key_error > 0.02 for layer in broken.layers] == [True, False, False]


def test_positions_where_none_are_expected_fail():
    assert verdict(written(table(), table()), (table(), None)).verdict.status == "text_only"


def test_keys_of_one_layer_swapped_for_anothers_fail():
    data = written(table(), table())
    data[1, 0, 100:] = data[0, 0, 100:]

    assert verdict(data, (table(), table())).verdict.status == "text_only"


def test_values_that_depend_on_the_position_fail():
    data = written(table(), table())
    data[1, 1] *= torch.linspace(1.0, 1.1, N)[:, None, None]

    found = verdict(data, (table(), table())).verdict

    assert found.max_value_drift > 0.02
    assert "from layer layers.1 on, the engine gives the same token other values" in found.reason


def test_not_a_number_fails():
    data = written(table(), table())
    data[0, 0, 5, 0, 0] = float("nan")

    assert verdict(data, (table(), table())).verdict.status == "text_only"


@pytest.mark.parametrize("vocab_size", [1, 300, 49152, 256000])
def test_the_probe_token_exists(vocab_size):
    assert 0 <= probe_token(vocab_size) < vocab_size
