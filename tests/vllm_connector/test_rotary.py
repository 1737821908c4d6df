"""The engine's own rotation tables: found, compared over the whole context, used bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inferscale_sdk.errors import IncompatibleModel
from inferscale_sdk.rope.spec import RopeSpec
from inferscale_sdk.vllm_connector import rotary

SPEC = RopeSpec.default(64, 500_000.0)
N = 4096
CPU = torch.device("cpu")


def rows(spec: RopeSpec, n: int = N, magnitude: float = 1.0) -> torch.Tensor:
    angles = torch.arange(n, dtype=torch.float32)[:, None] * torch.tensor(spec.frequencies).float()
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * magnitude


@pytest.fixture
def engine_has(monkeypatch):
    def show(*tables: tuple[bool, torch.Tensor]) -> None:
        monkeypatch.setattr(rotary, "_shown", lambda: iter(tables))

    return show


def test_the_engines_rows_are_used_as_they_are(engine_has) -> None:
    own = rows(SPEC).bfloat16()
    engine_has((False, own))
    tables = rotary.engine_tables([SPEC, None, SPEC], N, CPU)
    assert tables is not None
    assert tables[0] is tables[2] and tables[1] is None
    cos, sin = tables[0].moves(torch.tensor([0]), torch.tensor([77]))
    length = own[0].float().chunk(2)[0]  # cosine of position 0 is one
    assert torch.equal(cos[0] * length, own[77].float().chunk(2)[0])
    assert torch.equal(sin[0] * length, own[77].float().chunk(2)[1])


def test_slow_frequencies_are_compared_where_they_have_added_up(engine_has) -> None:
    """Halved, they differ by 0.001 within the probe's 256 positions, and by a turn at the end."""
    slow = SPEC.frequencies[:-8] + tuple(f / 2 for f in SPEC.frequencies[-8:])
    wrong = replace(SPEC, frequencies=slow)
    engine_has((False, rows(SPEC, 131_072)))
    with pytest.raises(IncompatibleModel, match=r"differ by .* within 131072 positions"):
        rotary.engine_tables([wrong], 131_072, CPU)


def test_float32_angles_of_a_long_context_are_no_difference(engine_has) -> None:
    """At the end of a million positions they are off by 0.07, for no other reason than rounding."""
    n = 1_010_000
    long = RopeSpec.default(16, 500_000.0)
    assert rotary._gap(long, rows(long, n)) < 0.02
    engine_has((False, rows(long, n)))
    assert rotary.engine_tables([long], n, CPU) is not None
    wrong = replace(long, frequencies=(*long.frequencies[:-1], long.frequencies[-1] * 1.05))
    with pytest.raises(IncompatibleModel):
        rotary.engine_tables([wrong], n, CPU)
    with pytest.raises(IncompatibleModel):
        rotary.engine_tables([RopeSpec.default(16, 501_000.0)], n, CPU)


@pytest.mark.parametrize("magnitude", [1.0, 1.28])
def test_yarns_magnitude_is_no_difference(engine_has, magnitude) -> None:
    engine_has((False, rows(SPEC, magnitude=magnitude)))
    assert rotary.engine_tables([SPEC], N, CPU) is not None


def test_of_several_tables_the_layers_own_is_found(engine_has) -> None:
    local = RopeSpec.default(64, 10_000.0)
    engine_has((False, rows(local)), (True, rows(SPEC)), (False, rows(SPEC)))
    tables = rotary.engine_tables([local, SPEC], N, CPU)
    assert tables is not None
    assert not torch.equal(tables[0]._rows, tables[1]._rows)


@pytest.mark.parametrize(
    "shown",
    [(), ((True, rows(SPEC)),), ((False, rows(RopeSpec.default(32, 500_000.0))),)],
    ids=["none", "another pairing", "another width"],
)
def test_no_table_of_the_shape_says_nothing(engine_has, shown) -> None:
    engine_has(*shown)
    assert rotary.engine_tables([SPEC], N, CPU) is None


def test_what_the_probe_cannot_see_must_be_shown(engine_has) -> None:
    slowed = RopeSpec.yarn(64, 10_000.0, factor=4.0, original_max_position=4096)
    engine_has((True, rows(slowed)))
    with pytest.raises(IncompatibleModel, match="shows no rotary table"):
        rotary.engine_tables([slowed], N, CPU)
    engine_has((False, rows(slowed)))
    assert rotary.engine_tables([slowed], N, CPU) is not None


def test_a_table_shorter_than_the_context_is_compared_but_not_used(engine_has) -> None:
    engine_has((False, rows(SPEC, 1000)))
    assert rotary.engine_tables([SPEC], N, CPU) is None


def test_not_a_number_fails(engine_has) -> None:
    broken = rows(SPEC)
    broken[5, 5] = float("nan")
    engine_has((False, broken))
    with pytest.raises(IncompatibleModel):
        rotary.engine_tables([SPEC], N, CPU)


def test_the_loaded_model_shows_its_table(harness) -> None:
    worker = harness.worker
    assert len(worker._candidates) == 3
    assert worker._table_fault == ""
    assert worker._loader.tables is worker._candidates[0]
