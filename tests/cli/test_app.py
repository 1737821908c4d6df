"""The shape of the command line, and what becomes of errors."""

import subprocess
import sys
import time

import pytest

from inferscale_sdk._version import __version__
from inferscale_sdk.cli import version as version_module
from inferscale_sdk.errors import EngineTimeout


def test_help_names_every_command(cli):
    text = cli("--help").stdout

    for command in ("demo", "serve", "chat", "memory", "kv", "doctor", "version"):
        assert command in text


def test_help_of_every_command_works(cli):
    for command in ("demo", "serve", "chat", "memory", "kv", "doctor", "version"):
        assert "--json" in cli(command, "--help").stdout or command in ("memory", "kv")


def test_help_is_quick_in_a_fresh_process():
    def seconds() -> float:
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "inferscale_sdk.cli", "--help"], check=True, capture_output=True
        )
        return time.perf_counter() - started

    assert min(seconds() for _ in range(3)) < 1.5


def test_version(cli):
    assert __version__ in cli("version").stdout
    assert cli.json("version")["inferscale_sdk"] == __version__


def test_a_wrong_setting_is_one_message_and_code_2(cli, monkeypatch):
    monkeypatch.setenv("INFERSCALE_SERVER_SECRET", "short")

    result = cli("memory", "list", code=2)

    assert "ConfigurationError: INFERSCALE_SERVER_SECRET has 5 characters" in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_another_failure_is_code_1(cli, monkeypatch):
    def fails() -> None:
        raise EngineTimeout("nothing for 60 s")

    monkeypatch.setattr(version_module, "print_json", lambda _: fails())

    assert "EngineTimeout: nothing for 60 s" in cli("version", "--json", code=1).stderr


def test_an_interrupt_is_code_130(cli, monkeypatch):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(version_module, "print_json", interrupted)

    cli("version", "--json", code=130)


@pytest.mark.parametrize("args", [["nonsense"], ["memory", "list", "--no-such-option"]])
def test_wrong_usage_is_code_2(cli, args):
    assert cli(*args, code=2).stdout == ""
