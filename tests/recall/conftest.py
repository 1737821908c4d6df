import pytest

pytest.register_assert_rewrite("inferscale_sdk.testing.recall_suite")
