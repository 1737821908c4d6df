"""The model's cache object: segments in, spans out, rows batched."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import DynamicCache  # noqa: E402

from inferscale_sdk.engines.transformers.cache import (  # noqa: E402
    append,
    keep_rows,
    layout_of,
    merge,
    new_cache,
    read,
)
from inferscale_sdk.errors import IncompatibleModel  # noqa: E402

LAYERS, HEADS, CHANNELS = 3, 2, 4


def states(rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``[row, kv_head, token, head_dim]``."""
    pair = torch.randn(2, rows, HEADS, tokens, CHANNELS)
    return pair[0], pair[1]


def filled(rows: int, tokens: int):
    cache = new_cache()
    for layer in range(LAYERS):
        cache.update(*states(rows, tokens), layer)
    return cache


def test_it_grows_as_the_librarys_own_does():
    ours, theirs = new_cache(), DynamicCache()
    for tokens in (1, 5, 200, 1, 1, 130, 1):
        for layer in range(LAYERS):
            keys, values = states(2, tokens)
            for got, expected in zip(
                ours.update(keys, values, layer), theirs.update(keys, values, layer), strict=True
            ):
                assert torch.equal(got, expected)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(1, 0) == theirs.get_mask_sizes(1, 0)


def test_room_is_used_before_it_is_made_again():
    cache = filled(1, 10)
    room = cache.layers[0]._room[0]

    for _ in range(50):
        cache.update(*states(1, 1), 0)

    assert cache.layers[0]._room[0] is room


def test_what_is_written_is_read():
    data = torch.randn(LAYERS, 2, 7, HEADS, CHANNELS)
    cache = new_cache()

    append(cache, data[:, :, :3])
    append(cache, data[:, :, 3:])

    assert torch.equal(read(cache, 0, 7), data)
    assert torch.equal(read(cache, 2, 5), data[:, :, 2:5])
    assert read(cache, 2, 5).is_contiguous()


def test_what_is_read_is_nobody_elses():
    cache = filled(1, 6)
    before = read(cache, 0, 6)
    kept = before.clone()

    cache.layers[0].keys.zero_()

    assert torch.equal(before, kept)


def test_rows_are_padded_on_the_left_and_come_out_again():
    short, long = filled(1, 3), filled(2, 8)

    merged = merge([short, long])

    assert merged.get_seq_length() == 8
    for layer in range(LAYERS):
        keys = merged.layers[layer].keys
        assert torch.equal(keys[0, :, 5:], short.layers[layer].keys[0])
        assert not keys[0, :, :5].any()
        assert torch.equal(keys[1:], long.layers[layer].keys)
    only_short = keep_rows(merged, [0], 5)
    assert torch.equal(read(only_short, 0, 3), read(short, 0, 3))


def test_layout_is_read_off():
    layout = layout_of(filled(1, 4))

    assert (layout.n_layers, layout.n_kv_heads, layout.head_dim) == (LAYERS, HEADS, CHANNELS)
    assert layout.dtype is torch.float32


def test_unlike_layers_are_refused():
    cache = filled(1, 4)
    cache.update(*(torch.zeros(1, 1, 4, CHANNELS),) * 2, LAYERS)

    with pytest.raises(IncompatibleModel, match="differ in KV shape"):
        layout_of(cache)


def test_keys_unlike_values_are_refused():
    cache = new_cache()
    cache.update(torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 6), 0)

    with pytest.raises(IncompatibleModel, match="but values"):
        layout_of(cache)
