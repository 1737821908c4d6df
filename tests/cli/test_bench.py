"""``inferscale bench quality``: what it refuses. Its measurements are tested under tests/bench."""

from __future__ import annotations

import pytest

DATA = ("bench", "quality", "--data")


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "none.json"
    path.write_text("[]")
    return str(path)


def test_bad_arguments_are_named_before_a_model_is_loaded(cli, data, tmp_path, monkeypatch):
    from inferscale_sdk import models

    monkeypatch.setattr(models, "bundled_model_path", lambda: tmp_path)
    missing = cli(*DATA, str(tmp_path / "nowhere.json"), code=2)
    assert "nowhere.json" in missing.stderr
    assert "w20/loud" in cli(*DATA, data, "--arm", "w20/loud", code=2).stderr
    assert "'--k': '0'" in cli(*DATA, data, "--k", "0", code=2).stderr


@pytest.mark.parametrize("arm", ["w{}", "related{}", "related5+{}", "related5x{}", "w20/live{}"])
def test_numbers_in_the_names_of_arms_have_an_end(cli, data, tmp_path, monkeypatch, arm):
    from inferscale_sdk import models

    monkeypatch.setattr(models, "bundled_model_path", lambda: tmp_path)
    for number in ("9" * 20, "9" * 5000):
        assert "unknown" in cli(*DATA, data, "--arm", arm.format(number), code=2).stderr


def test_another_format_is_named(cli, tmp_path, monkeypatch):
    from inferscale_sdk import models

    monkeypatch.setattr(models, "bundled_model_path", lambda: tmp_path)
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    assert "LoCoMo's shape" in cli(*DATA, str(path), code=1).stderr
