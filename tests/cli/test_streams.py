"""Streams that are closed, full, or in another encoding: one message, and no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from inferscale_sdk.cli.app import app

FULL = Path("/dev/full")
NOT_UTF_8 = b"I like tea\nI like caf\xe9\nI like milk\n"

needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")


def shell(command, **more):
    """What becomes of a command line in a process of its own; ``inferscale`` is the command."""
    command = command.replace("inferscale", f'"{sys.executable}" -m inferscale_sdk.cli')
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | more
    done = subprocess.run(["bash", "-c", command], capture_output=True, env=environment)
    stderr = done.stderr.decode()
    assert "Traceback" not in stderr and "Exception ignored" not in stderr, stderr
    return done.returncode, done.stdout.decode(), stderr


@needs_full
@pytest.mark.parametrize("command", ["memory list", "memory list --json", "--help"])
def test_a_full_disk_is_one_message(cli, command):
    cli("memory", "add", "I like tea")

    code, _, stderr = shell(f"inferscale {command} > {FULL}")

    assert (code, stderr) == (1, "OSError: [Errno 28] No space left on device\n")


@needs_full
def test_a_full_disk_ends_a_chat_with_one_message(fake_engine, monkeypatch, capsys, tmp_path):
    asked = tmp_path / "asked"
    asked.write_text("Hello there\n")
    with FULL.open("w") as full, asked.open() as stdin:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(SystemExit) as ended:
            typer.main.get_command(app).main(["chat"])
        monkeypatch.undo()

    assert ended.value.code == 1
    assert "OSError: [Errno 28] No space left on device" in capsys.readouterr().err
    assert fake_engine.closed


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("memory add -", "stdin is closed"),
        ("memory forget --all", "Nobody is there to answer; give --yes"),
        ("chat", "stdin is closed"),
    ],
)
def test_a_closed_stdin_is_wrong_usage(cli, command, told):
    cli("memory", "add", "I like tea")

    code, stdout, stderr = shell(f"inferscale {command} <&-")

    assert (code, stdout) == (2, "")
    assert told in stderr


def test_what_nobody_wants_to_read_is_written_nowhere(cli):
    cli("memory", "add", "I like tea")

    for command in ("memory list >&-", "memory list --json >&- 2>&-"):
        assert shell(f"inferscale {command}") == (0, "", "")


def test_a_pipe_that_nobody_reads_to_its_end_is_no_failure_to_tell(cli):
    cli("memory", "add", *(f"I like tea number {n}" for n in range(300)))

    for command in ("memory list", "memory list --json", "memory export"):
        assert shell(f"inferscale {command} | head -c 1")[2] == ""


def test_bytes_that_are_no_text_are_not_remembered(cli):
    told = cli("memory", "add", "-", stdin=NOT_UTF_8, code=2).stderr

    assert "line 2 of stdin is not utf-8" in told
    assert cli("memory", "list").stdout == ""


def test_a_line_that_is_no_text_ends_no_chat(cli, fake_engine):
    result = cli("chat", stdin=NOT_UTF_8, code=1)

    assert result.stdout.count("I read") == 2
    assert r"a line is not in the encoding of stdin: 'I like caf\udce9'" in result.stderr
    assert "caf" not in cli("memory", "list").stdout


def test_what_an_encoding_has_no_letter_for_is_escaped(cli):
    cli("memory", "add", "I like café and 茶")
    code, stdout, stderr = shell("inferscale memory list", PYTHONIOENCODING="ascii")
    assert (code, stderr) == (0, "")
    assert r"I like caf\xe9 and \u8336" in stdout

    code, stdout, _ = shell("inferscale memory list --json", PYTHONIOENCODING="ascii")
    assert code == 0
    assert json.loads(stdout)[0]["text"] == "I like café and 茶"
