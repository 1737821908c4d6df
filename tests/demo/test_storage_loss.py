"""Storage dtypes on the KV of a real model: the error of keys and values, and of answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers")

from inferscale_sdk.bench.quality.model import ScoringModel
from inferscale_sdk.demo.storage import (
    FLOOR,
    TEXT,
    StorageLoss,
    loss_table,
    measure_storage_loss,
)
from inferscale_sdk.hardware import cpu_dtype

pytestmark = [pytest.mark.engine]


IN_16_BITS = cpu_dtype() == "auto"


@pytest.fixture(scope="module")
def losses() -> Iterator[dict[str, StorageLoss]]:
    from inferscale_sdk.models import bundled_model_path

    model = ScoringModel.load(str(bundled_model_path()))
    yield {loss.name: loss for loss in measure_storage_loss(model, k=10, quotes=4)}


@pytest.mark.parametrize(
    ("storage", "share", "key_error", "value_error"),
    [("fp8", 0.505, 0.03, 0.03), ("int8", 0.54, 0.012, 0.012), ("int4", 0.36, 0.12, 0.12)],
)
def test_errors_of_keys_and_values(
    losses: dict[str, StorageLoss],
    storage: str,
    share: float,
    key_error: float,
    value_error: float,
) -> None:
    loss = losses[storage]
    assert 0 < loss.key_error < key_error
    assert 0 < loss.value_error < value_error
    assert loss.bytes_share < share


def test_as_cache_loses_nothing(losses: dict[str, StorageLoss]) -> None:
    loss = losses["as_cache"]
    assert (loss.bytes_share, loss.key_error, loss.value_error) == (1.0, 0.0, 0.0)
    assert (loss.kl_mean, loss.nll_change, loss.same_top) == (0.0, 0.0, 1.0)


def test_half_the_bytes_cost_no_more_than_rounding_does(losses: dict[str, StorageLoss]) -> None:
    floor = losses[FLOOR]
    assert floor.kl_mean > 0
    for storage, times in (("int8", 3), ("fp8", 6)):
        # Several times the floor would still be nothing next to what injection itself changes.
        assert losses[storage].kl_mean < losses[TEXT].kl_mean / 10
        # A model that computes in float32 rounds a hundred times less than one byte can hold.
        if IN_16_BITS:
            assert losses[storage].kl_mean < times * floor.kl_mean
    assert losses["int8"].kl_mean < losses["int4"].kl_mean


def test_the_table_has_a_row_for_each(losses: dict[str, StorageLoss]) -> None:
    rows: list[Any] = loss_table(list(losses.values())).splitlines()
    assert len(rows) == 2 + len(losses) == 8
    assert rows[2].startswith(f"| {FLOOR} |  |  |  | 0.")
    assert rows[5].startswith("| `int8` | 5" if IN_16_BITS else "| `int8` | 26")
