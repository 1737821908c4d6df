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

SMALL = {
    "ks": (1, 3), "tokens": 5, "rounds": 2, "layers": 2, "kv_heads": 2, "head_dim": 16,
}  # fmt: skip


def test_on_a_cpu_everything_lies_in_host_memory(tmp_path):
    result = json.loads(json.dumps(run_write(WriteOptions(**SMALL, device="cpu"), Silent())))

    assert set(result["cells"]) == {"chain", "copy", "kernel", "kernel_from_host"}
    assert result["mib"]["k3"] == round(3 * 5 * 2 * 2 * 2 * 16 * 2 / 2**20, 1)
    cell = result["cells"]["copy"]["k3"]
    assert cell["write_ms"]["n"] == 2
    assert set(result["ratios"]) == {
        "chain_over_copy", "kernel_over_copy", "kernel_from_host_over_copy",
    }  # fmt: skip
    assert "plain copy on the device" in dict(tables_of(result))["GB/s, read and written"]
    assert all(path.exists() for path in write_plots(result, tmp_path))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"ks": ()}, "ks"),
        ({"rounds": 0}, "rounds=0"),
        ({"head_dim": 7}, "head_dim=7"),
        ({"device": "tpu"}, "tpu"),
        ({"dtype": "int8"}, "int8"),
    ],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(ConfigurationError, match=named):
        WriteOptions(**{"device": "cpu"} | options)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(ConfigurationError, match="no CUDA device"):
        WriteOptions()


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", "bfloat16"), ("cpu", "float32"),
     pytest.param("cuda", "bfloat16", marks=[pytest.mark.gpu, pytest.mark.skipif(
         not torch.cuda.is_available(), reason="there is no CUDA device")])],
)  # fmt: skip
def test_the_kernel_writes_what_the_chain_writes_and_is_measured(device, dtype):
    bed = writing._Bed(WriteOptions(**SMALL, device=device, dtype=dtype))
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

    out = measure_write(WriteOptions(**SMALL, device=device, dtype=dtype), Stages(Silent()))

    host = "copy_from_host" if device == "cuda" else "copy"
    assert set(out["ratios"]) == {
        "kernel_over_copy", "chain_over_copy", f"kernel_from_host_over_{host}",
    }  # fmt: skip
