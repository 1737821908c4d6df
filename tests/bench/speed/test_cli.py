"""What the commands refuse before anything is started, and what ``compare`` prints."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from inferscale_sdk.cli.app import app


def bench(*args, code):
    result = CliRunner().invoke(app, ["bench", *args])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (("ttft", "--k", "five"), "five"),
        (("ttft", "--k", "-1"), "'--k': '-1'"),
        (("ttft", "--arm", "prompt,magic"), "magic"),
        (("throughput", "--arm", "disk"), "disk"),
        (("throughput", "--users", "0"), "users"),
        (("scale", "--sizes", "10,5"), "sizes"),
        (("write", "--device", "cpu", "--k", "0"), "'--k': '0'"),
        (("ttft", "--arm", "disk", "--base-url", "http://127.0.0.1:1", "--data", "no"), "no"),
    ],
)
def test_bad_arguments_are_named_before_a_server_is_started(args, named, monkeypatch):
    monkeypatch.setattr(
        "inferscale_sdk.engines.vllm.VLLMEngine.launch",
        lambda *_, **__: pytest.fail("a server was started"),
    )

    assert named in bench(*args, code=2).stderr


def test_a_running_server_has_the_tiers_it_has():
    from inferscale_sdk.bench.speed.arms import Arm
    from inferscale_sdk.bench.speed.bed import BedOptions, open_bed
    from inferscale_sdk.bench.speed.corpus import load_corpus
    from inferscale_sdk.bench.speed.listener import Stages
    from inferscale_sdk.errors import ConfigurationError
    from inferscale_sdk.testing.fake_embedder import FakeEmbedder

    options = BedOptions(folder=None, base_url="http://127.0.0.1:1", arms=(Arm.DISK,))
    bed = open_bed(options, load_corpus(None), Stages(None), FakeEmbedder())

    with pytest.raises(ConfigurationError, match="disk need servers of their own"):
        bed.__enter__()


def test_compare_prints_what_both_have(tmp_path):
    spread = {"median": 10.0, "p25": 9.0, "p75": 11.0}
    first = {"bench": "ttft", "environment": {"cpu": "a"}, "cells": {"inject": {"k5": spread}}}
    second = json.loads(json.dumps(first).replace("10.0", "5.0").replace("9.0", "4.0"))
    second["cells"]["inject"]["k5"]["p75"] = 6.0
    paths = []
    for name, result in (("a", first), ("b", second)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(result))

    out = json.loads(bench("compare", *map(str, paths), "--json", code=0).stdout)

    figure = out["figures"]["cells.inject.k5"]
    assert (figure["first"], figure["second"], figure["ratio"]) == (10.0, 5.0, 0.5)
    assert figure["apart"] is True
    assert "cells.inject.k5" in bench("compare", *map(str, paths), code=0).stdout
    assert "no.json" in bench("compare", str(paths[0]), str(tmp_path / "no.json"), code=2).stderr
