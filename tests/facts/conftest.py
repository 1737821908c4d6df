import pytest

pytest.register_assert_rewrite(
    "inferscale_sdk.testing.fact_store_suite",
    "inferscale_sdk.testing.fact_find_suite",
    "inferscale_sdk.testing.fact_ledger_suite",
)
