"""The dependency audit fails on findings, and never takes silence for health."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "audit.py"
CANARY_FOUND = [{"name": "requests", "version": "2.19.0", "vulns": [{"id": "PYSEC-1"}]}]
CLEAN = [
    {"name": "httpx", "version": "1", "vulns": []},
    {"name": "inferscale-sdk", "skip_reason": "not on PyPI"},
]
BAD = [{"name": "evil", "version": "1", "vulns": [{"id": "GHSA-1", "fix_versions": ["2"]}]}]


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answering(audit: ModuleType, monkeypatch: Any, canary: Any, environment: Any) -> list[Any]:
    """pip-audit, answering with these packages or printing this text."""
    asked = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        said = canary if "--requirement" in command else environment
        if isinstance(said, Exception):
            raise said
        out = said if isinstance(said, str) else json.dumps({"dependencies": said})
        return SimpleNamespace(stdout=out, returncode=0)

    monkeypatch.setattr(audit.subprocess, "run", run)
    return asked


def test_a_finding_fails_and_is_named(audit, monkeypatch, capsys) -> None:
    answering(audit, monkeypatch, CANARY_FOUND, BAD)
    assert audit.main(["site-packages"]) == 1
    assert "evil 1: GHSA-1, fixed in: 2" in capsys.readouterr().out


def test_a_clean_environment_passes_and_says_what_was_unknown(audit, monkeypatch, capsys) -> None:
    asked = answering(audit, monkeypatch, CANARY_FOUND, CLEAN)
    assert audit.main(["one", "two"]) == 0
    out = capsys.readouterr().out
    assert out.count("1 packages asked about, 1 unknown") == 2 and "NOT AUDITED" not in out
    assert [command[-1] for command in asked[1:]] == ["one", "two"]


@pytest.mark.parametrize(
    "canary",
    [
        [{"name": "requests", "version": "2.19.0", "skip_reason": "not found"}],
        [{"name": "requests", "version": "2.19.0", "vulns": []}],
        "ConnectionError: …",
        "",
        OSError("no such program"),
        subprocess.TimeoutExpired("pip-audit", 1),
    ],
    ids=["unknown", "no data", "unreachable", "silent", "not installed", "slow"],
)
def test_without_a_service_nothing_fails_and_nothing_is_called_clean(
    audit, monkeypatch, capsys, canary
) -> None:
    asked = answering(audit, monkeypatch, canary, BAD)
    assert audit.main(["site-packages"]) == 0
    assert "NOT AUDITED" in capsys.readouterr().out
    assert len(asked) == len(audit.SERVICES)


def test_a_service_that_fails_later_is_told_as_well(audit, monkeypatch, capsys) -> None:
    answering(audit, monkeypatch, CANARY_FOUND, "gone")
    assert audit.main(["site-packages"]) == 0
    assert "NOT AUDITED: site-packages" in capsys.readouterr().out
