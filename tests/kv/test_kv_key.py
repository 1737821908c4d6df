"""Content addresses: golden values, and what changes them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_sdk.kv.key import namespace_secret, owner_tag, segment_key, token_digest

INPUTS: dict[str, Any] = {
    "fingerprint": "smollm2-0123456789abcdef",
    "frame_version": "frame-1",
    "secret": bytes(range(32)),
    "context_ids": [1, 2, 3, 49151],
    "own_ids": [7, 8, 4_000_000_000],
    "adapter": "",
    "storage_dtype": "auto",
}


def test_golden_values() -> None:
    """A change here orphans every stored segment: raise FORMAT_VERSION and say so in the log."""
    assert segment_key(**INPUTS) == "24d820631d83364b60e57a3495649e51638e6442"
    assert token_digest([1, 2, 3, 49151]) == "b3998881a70880957ee6151624337145"
    assert token_digest([]) == "cae66941d9efbd404e4d88758ea67670"
    assert namespace_secret(b"store secret", '["app","u","alice"]').hex() == (
        "d0e07a8033b998c5edd58be06f2e9fad2c34be05d026620282a4e1887d28196f"
    )


@pytest.mark.field_fault(10)
def test_another_process_gives_the_same_key() -> None:
    code = f"from inferscale_sdk.kv.key import segment_key; print(segment_key(**{INPUTS!r}))"
    for hash_seed in ("0", "1", "random"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        assert run.stdout.strip() == segment_key(**INPUTS)


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "another"},
        {"frame_version": "frame-2"},
        {"secret": bytes(32)},
        {"context_ids": [1, 2, 3]},
        {"context_ids": []},
        {"own_ids": [8, 7, 4_000_000_000]},
        {"adapter": "lora:abc"},
        {"storage_dtype": "float8_e4m3fn"},
        # Nothing may move from one field into its neighbour.
        {"context_ids": [1, 2, 3, 49151, 7], "own_ids": [8, 4_000_000_000]},
        {"fingerprint": "smollm2-0123456789abcdefframe-1", "frame_version": ""},
    ],
)
@pytest.mark.field_fault(12)
def test_every_input_counts(change: dict[str, Any]) -> None:
    key = segment_key(**{**INPUTS, **change})
    assert key != segment_key(**INPUTS)
    assert len(key) == 40
    assert set(key) <= set("0123456789abcdef")


@given(
    st.tuples(*[st.lists(st.integers(0, 2**32 - 1), max_size=4)] * 2),
    st.tuples(*[st.lists(st.integers(0, 2**32 - 1), max_size=4)] * 2),
)
def test_keys_are_equal_only_for_equal_tokens(
    one: tuple[list[int], list[int]], other: tuple[list[int], list[int]]
) -> None:
    keys = [
        segment_key(**{**INPUTS, "context_ids": context, "own_ids": own})
        for context, own in (one, other)
    ]
    assert (keys[0] == keys[1]) == (one == other)


def test_namespaces_have_different_secrets() -> None:
    secrets = {
        namespace_secret(store, partition)
        for store in (b"a", b"b")
        for partition in ('[null,"u","alice"]', '[null,"u","bob"]', "")
    }
    assert len(secrets) == 6
    assert {len(secret) for secret in secrets} == {32}


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_token_ids_that_do_not_fit_are_refused(bad: int) -> None:
    with pytest.raises(OverflowError):
        token_digest([bad])


def test_this_module_loads_without_torch() -> None:
    code = (
        "import sys, inferscale_sdk.kv.key, inferscale_sdk.rope.spec;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_an_owner_s_tag_follows_from_the_namespace_s_secret_alone() -> None:
    """It stands in files, and a budget hangs on it."""
    assert owner_tag(bytes(range(32))) == "2d967c8e02b5e294caa6a8e0c342aeb5"
    store = b"s" * 32
    tags = {owner_tag(namespace_secret(store, name)) for name in ("a", "b", "", "a\0")}
    assert len(tags) == 4
    assert namespace_secret(store, "a").hex() not in tags
