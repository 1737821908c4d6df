"""``bench write``: what is timed is what the connector does, and every way writes the same."""

from __future__ import annotations

import json

import pytest
import torch
from speed_fakes import Silent

from inferscale_sdk.bench.speed import writing
from inferscale_sdk.bench.speed.listener import Stages
from inferscale_sdk.bench.speed.plots import write_plots
from inferscale_sdk.bench.speed.session import run_write
from inferscale_sdk.bench.speed.tables import tables_of
from inferscale_sdk.bench.speed.writing import WriteOptions, measure_write
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.testing.interpreted_kernel import interpreted_kernel

SMALL = {
    "ks": (1, 3), "tokens": 5, "rounds": 2, "layers": 2, "kv_heads": 2, "head_dim": 16,
}  # fmt: skip


def test_without_a_gpu_the_chain_is_measured(tmp_path):
    result = json.loads(json.dumps(run_write(WriteOptions(**SMALL, device="cpu"), Silent())))

    assert set(result["cells"]) == {"chain", "copy"}
    assert result["mib"]["k3"] == round(3 * 5 * 2 * 2 * 2 * 16 * 2 / 2**20, 1)
    cell = result["cells"]["copy"]["k3"]
    assert cell["write_ms"]["n"] == 2
    assert set(result["ratios"]) == {"chain_over_copy"}
    assert "plain copy on the device" in dict(tables_of(result))["GB/s, read and written"]
    assert all(path.exists() for path in write_plots(result, tmp_path))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ks": ()}, "ks"),
        ({"rounds": 0}, "rounds=0"),
        ({"head_dim": 7}, "head_dim=7"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(ConfigurationError, match=named):
        WriteOptions(**{"device": "cpu"} | options)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(ConfigurationError, match="no CUDA device"):
        WriteOptions()


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
        not torch.cuda.is_available(), reason="there is no CUDA device")])]
)  # fmt: skip
def device(request, monkeypatch):
    """A device with a kernel: on a CPU under triton's interpreter."""
    if request.param == "cpu":
        pytest.importorskip("triton", reason="has no wheels for this system")
        kernel = interpreted_kernel()
        monkeypatch.setattr(writing, "write_kernel", lambda device: kernel)
    return request.param


def test_the_kernel_writes_what_the_chain_writes_and_is_measured(device):
    bed = writing._Bed(WriteOptions(**SMALL, device=device))
    work = bed.draw(3)
    written = {}
    for way in ("chain", "kernel", "kernel_from_host"):
        for layer in (*bed._cache.keys, *bed._cache.values):
            layer.zero_()
        bed.time(way, work)
        written[way] = [layer.float().cpu() for layer in (*bed._cache.keys, *bed._cache.values)]
    for way in ("kernel", "kernel_from_host"):
        for ours, theirs in zip(written[way], written["chain"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=1e-5)

    out = measure_write(WriteOptions(**SMALL, device=device), Stages(Silent()))

    assert set(out["ratios"]) == {
        "kernel_over_copy", "chain_over_copy", "kernel_from_host_over_copy_from_host",
    }  # fmt: skip
