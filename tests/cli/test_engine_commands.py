"""``serve``, ``kv stats`` and ``doctor``."""

import base64
import json
import sys

import pytest

from inferscale_sdk import server
from inferscale_sdk.cli import checks, session
from inferscale_sdk.cli.checks import Check, Verdict
from inferscale_sdk.config import settings
from inferscale_sdk.errors import EngineUnavailable
from inferscale_sdk.testing.fake_server import FakeServer


@pytest.fixture
def served_by(monkeypatch):
    """This interpreter stands in for the server's; gives what would have replaced this process."""
    executed = []
    monkeypatch.setattr(server, "find_server_python", lambda: sys.executable)
    monkeypatch.setattr("os.execve", lambda *args: executed.append(args))
    return executed


# -- serve -----------------------------------------------------------------------------------


def test_serve_shows_the_command_it_would_run(cli, home, served_by, tmp_path):
    found = cli.json("serve", str(tmp_path), "--port", "8123", "--", "--seed", "7")

    argv = found["argv"]
    assert argv[0] == sys.executable
    assert argv[argv.index("--model") + 1] == str(tmp_path)
    assert argv[argv.index("--port") + 1] == "8123"
    assert argv[-2:] == ["--seed", "7"]
    assert str(home / "kv") in argv[argv.index("--kv-transfer-config") + 1]
    assert sys.executable in cli("serve", str(tmp_path), "--dry-run").stdout


def test_serve_becomes_the_server(cli, served_by, tmp_path):
    cli("serve", str(tmp_path), "--port", "8123")

    ((program, argv, env),) = served_by
    assert program == argv[0] == sys.executable
    assert env["VLLM_NO_USAGE_STATS"] == "1"


def test_serve_keeps_nothing_on_disk_when_told_so(cli, home, served_by, tmp_path):
    argv = cli.json("serve", str(tmp_path), "--memory-only")["argv"]

    assert str(home / "kv") not in " ".join(argv)


def test_serve_opens_the_tiers_it_is_told_to(cli, served_by, tmp_path):
    options = ["--device-gib", "0.5", "--disk-gib", "2", "--storage-dtype", "int8"]
    options += ["--eviction", "cost", "--owner-mib", "64"]
    argv = cli.json("serve", str(tmp_path), *options)["argv"]

    config = json.loads(argv[argv.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    del config["disk_path"]
    assert config == {
        "device_bytes": 1 << 29,
        "disk_bytes": 2 << 30,
        "storage_dtype": "int8",
        "eviction": "cost",
        "owner_bytes": 64 << 20,
    }
    assert "'int3'" in cli("serve", "m", "--storage-dtype", "int3", code=2).stderr


def test_serve_hands_the_remote_tier_over_in_the_environment(cli, served_by, tmp_path):
    shown = cli("serve", str(tmp_path), "--remote-url", "redis://:hunter2@host", "--json").output
    assert "hunter2" not in shown
    cli("serve", str(tmp_path), "--remote-url", "redis://:hunter2@host")

    ((_, argv, env),) = served_by
    assert env["INFERSCALE_REMOTE_URL"] == "redis://:hunter2@host"
    assert "hunter2" not in " ".join(argv)


def test_serve_never_shows_the_secret(cli, served_by, tmp_path, monkeypatch):
    monkeypatch.setenv("INFERSCALE_SERVER_SECRET", "correct horse battery staple")

    assert "staple" not in cli("serve", str(tmp_path), "--json").output
    assert "staple" not in cli("serve", str(tmp_path), "--dry-run").output


def test_serve_shows_all_of_the_environment_and_no_password(cli, served_by, tmp_path, monkeypatch):
    url = ("--remote-url", "redis://:hun/t?er2@kv.internal:6379/0?password=swordfish")
    shown = cli("serve", str(tmp_path), *url, "--dry-run")
    assert "INFERSCALE_REMOTE_URL='redis://…@kv.internal:6379/0?…'" in shown.stdout
    assert "INFERSCALE_REMOTE_URL; put in their values" in shown.stderr
    assert not any(secret in shown.output for secret in ("hun", "er2", "swordfish"))

    # What the server inherits of this process.
    monkeypatch.setenv("INFERSCALE_REMOTE_URL", "valkey://kv.internal:6379/0")
    monkeypatch.setenv("INFERSCALE_KV_KEY", base64.b64encode(b"k" * 32).decode())
    monkeypatch.setenv("INFERSCALE_SERVER_SECRET", "correct horse battery staple")
    settings.cache_clear()
    found = cli.json("serve", str(tmp_path))
    assert found["env"]["INFERSCALE_REMOTE_URL"] == "valkey://kv.internal:6379/0"
    assert found["masked"] == ["INFERSCALE_KV_KEY", "INFERSCALE_SERVER_SECRET"]
    assert {found["env"][name] for name in found["masked"]} == {"***"}


def test_serve_shows_what_has_no_secrets_as_it_is(cli, served_by, tmp_path):
    shown = cli("serve", str(tmp_path), "--remote-url", "s3://bucket/kv", "--dry-run")
    assert "INFERSCALE_REMOTE_URL=s3://bucket/kv" in shown.stdout
    assert shown.stderr == ""


@pytest.mark.parametrize(
    "url",
    ["nonsense", "", "/mnt/kv", "redis://", "redis://host:port", "redis://[::1", "1s3://b"],
)
def test_serve_refuses_a_remote_tier_that_is_none(cli, served_by, tmp_path, url, monkeypatch):
    for how in ("--dry-run", "--json"):
        told = cli("serve", str(tmp_path), "--remote-url", url, how, code=2).stderr
        assert "--remote-url" in told and "redis://host:6379/0" in told
    if url:
        monkeypatch.setenv("INFERSCALE_REMOTE_URL", url)
        settings.cache_clear()
        told = cli("serve", str(tmp_path), "--dry-run", code=2).stderr
        assert "INFERSCALE_REMOTE_URL" in told and "redis://host:6379/0" in told
    assert served_by == []


def test_a_wrong_address_is_told_without_its_password(cli, served_by, tmp_path):
    told = cli("serve", str(tmp_path), "--remote-url", "redis://:hunter2@host:x", code=2).output
    assert "host:x" in told and "hunter2" not in told


def test_serve_refuses_a_file_for_kv(cli, served_by, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        told = cli("serve", str(tmp_path), "--kv-path", str(path), "--dry-run", code=2).stderr
        assert "--kv-path" in told and "is a file" in told


# -- kv stats --------------------------------------------------------------------------------


def test_kv_stats_of_a_server(cli, fake_engine):
    fake_engine.segments["0" * 40] = "digest"

    found = cli.json("kv", "stats", "--base-url", "http://127.0.0.1:1")

    assert found["counters"] == {"segments": 1}
    assert "segments" in cli("kv", "stats", "--base-url", "http://127.0.0.1:1").stdout


def test_kv_stats_of_a_folder_counts_segments_and_nothing_else(cli, tmp_path):
    shard = tmp_path / "kv" / "abc" / "r0"
    (shard / "00").mkdir(parents=True)
    (shard / "00" / f"{'0' * 40}.ifs").write_bytes(b"x" * 7)
    (shard / "00" / f"{'0' * 40}.tmp").write_bytes(b"x" * 9)

    found = cli.json("kv", "stats", "--path", str(tmp_path / "kv"))

    assert found["models"] == {"abc/r0": {"segments": 1, "bytes": 7}}


def test_kv_stats_of_an_empty_home(cli):
    assert cli.json("kv", "stats")["models"] == {}
    assert "no segments" in cli("kv", "stats").stdout


# -- doctor ----------------------------------------------------------------------------------


def by_name(report):
    return {check["name"]: check for check in report["checks"]}


def test_doctor_names_versions_and_interpreter(cli, served_by):
    found = by_name(cli.json("doctor", code=1))

    assert found["inferscale-sdk"]["verdict"] == "ok"
    # The client's interpreter has no vLLM.
    assert found["server interpreter"]["verdict"] == "fail"
    assert "INFERSCALE_SERVER_PYTHON" in found["server interpreter"]["fix"]
    assert found["engine"]["verdict"] == "note"


def test_doctor_asks_the_engine(cli, fake_engine, monkeypatch):
    monkeypatch.setattr(checks, "machine_checks", list)

    found = by_name(cli.json("doctor", "--base-url", "http://127.0.0.1:1"))

    assert found["model"]["detail"].startswith("fake")
    assert found["injection"]["verdict"] == "ok"
    assert fake_engine.closed


def test_doctor_says_why_memory_goes_as_text(cli, fake_engine, monkeypatch):
    monkeypatch.setattr(checks, "machine_checks", list)
    fake_engine._can_inject = False

    result = cli("doctor", "--base-url", "http://127.0.0.1:1", code=1)

    assert "can_inject=False" in result.stdout
    assert "inferscale serve" in result.stdout


@pytest.mark.parametrize("secret", ["not what the server has", None])
def test_doctor_says_that_the_secret_is_wrong(cli, monkeypatch, secret):
    monkeypatch.setattr(checks, "machine_checks", list)
    if secret is not None:
        monkeypatch.setenv("INFERSCALE_SERVER_SECRET", secret)
    settings.cache_clear()

    with FakeServer(secret=b"what the server has") as server:
        found = by_name(cli.json("doctor", "--base-url", server.base_url, code=1))

    assert found["injection"]["verdict"] == "fail"
    assert "the secret is wrong or missing" in found["injection"]["fix"]
    assert "inferscale serve" not in found["injection"]["fix"]


def test_doctor_survives_a_server_that_is_not_there(cli, monkeypatch):
    def nobody(_: str) -> None:
        raise EngineUnavailable("nothing answers at http://127.0.0.1:1")

    monkeypatch.setattr(checks, "machine_checks", list)
    monkeypatch.setattr(session, "connect", nobody)

    found = by_name(cli.json("doctor", "--base-url", "http://127.0.0.1:1", code=1))

    assert "nothing answers" in found["engine"]["detail"]


def test_a_check_that_breaks_is_a_failed_check():
    def broken():
        yield Check("first", Verdict.OK, "fine")
        raise RuntimeError("boom")

    first, second = checks.guarded("second", broken)

    assert first.verdict is Verdict.OK
    assert (second.verdict, second.detail) == (Verdict.FAIL, "RuntimeError: boom")
