"""How a server is started: arguments, environment, interpreter."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk import server as server_module
from inferscale_sdk.config import settings
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.server import find_server_python, server_command


def _value(argv: list[str], option: str) -> str:
    return argv[argv.index(option) + 1]


def _config(argv: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(_value(argv, "--kv-transfer-config"))
    return config


def test_defaults_on_a_cpu(tmp_path: Path) -> None:
    argv, env = server_command(tmp_path, python="/py", port=8000, cpu=True)
    assert argv[:3] == ["/py", "-m", "vllm.entrypoints.openai.api_server"]
    assert _value(argv, "--host") == "127.0.0.1"
    assert _value(argv, "--model") == str(tmp_path)
    for flag in ("--enable-prompt-tokens-details", "--enable-prefix-caching", "--enforce-eager"):
        assert flag in argv
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert (env["VLLM_NO_USAGE_STATS"], env["DO_NOT_TRACK"]) == ("1", "1")


@pytest.mark.parametrize(
    ("asked", "cpu", "dtype"),
    [("auto", True, "float32"), ("bfloat16", True, "bfloat16"), ("auto", False, "auto")],
)
def test_a_cpu_without_16_bit_arithmetic(
    asked: str, cpu: bool, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "cpu_dtype", lambda: "float32")
    argv, _ = server_command("model", python="/py", port=8000, cpu=cpu, dtype=asked)
    assert _value(argv, "--dtype") == dtype


def test_transfer_config() -> None:
    argv, _ = server_command(
        "model",
        python="/py",
        port=8000,
        disk_path=Path("kv"),
        host_bytes=1 << 21,
        connector_config={"load_timeout_seconds": 3},
    )
    assert _config(argv) == {
        "kv_connector": "InferScaleConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": "inferscale_sdk.vllm_connector.connector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "host_bytes": 1 << 21,
            "disk_path": "kv",
            "load_timeout_seconds": 3,
        },
    }


def test_a_plain_server_and_further_arguments() -> None:
    argv, _ = server_command(
        "m", python="/py", port=1, connector=False, eager=False, extra=["--seed", "3"]
    )
    assert "--kv-transfer-config" not in argv
    assert "--enforce-eager" not in argv
    assert argv[-2:] == ["--seed", "3"]


def test_on_a_gpu_nothing_is_said_about_threads() -> None:
    argv, env = server_command("org/model", python="/py", port=8000, cpu=False)
    assert "--enforce-eager" not in argv
    on_cpus = {"VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    assert not (on_cpus | {"HF_HUB_OFFLINE"}) & env.keys()


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def env_with(cpus: int, **options: Any) -> dict[str, str]:
        monkeypatch.setattr(server_module, "_usable_cpus", lambda: range(cpus))
        return server_command("m", python="/py", port=1, cpu=True, **options)[1]

    assert env_with(2)["OMP_NUM_THREADS"] == "2"
    assert env_with(2)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "OMP_NUM_THREADS" not in env_with(64)
    assert env_with(64, threads=8)["OMP_NUM_THREADS"] == "8"


@pytest.mark.parametrize(
    ("cpus", "extra", "in_process"),
    [
        (2, [], True),
        (64, [], False),
        (2, ["--tensor-parallel-size", "2"], False),
        (2, ["-tp=2"], False),
    ],
)
def test_no_worker_process_on_a_small_machine(
    cpus: int, extra: list[str], in_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_usable_cpus", lambda: range(cpus))
    argv, _ = server_command("m", python="/py", port=1, cpu=True, extra=extra)
    assert ("--distributed-executor-backend" in argv) == in_process
    if in_process:
        assert _value(argv, "--distributed-executor-backend").endswith(".UniProcExecutor")
    # On a GPU vLLM chooses that by itself.
    argv, _ = server_command("m", python="/py", port=1, cpu=False, extra=extra)
    assert "--distributed-executor-backend" not in argv


def test_the_secret_is_not_on_the_command_line() -> None:
    argv, env = server_command("m", python="/py", port=1, secret=b"0123456789abcdef")
    assert env["INFERSCALE_SERVER_SECRET"] == "0123456789abcdef"
    assert "0123456789abcdef" not in " ".join(argv)


def test_the_remote_tier_is_not_on_the_command_line_either() -> None:
    config = {"remote_url": "redis://:hunter2@host", "eviction": "cost"}
    argv, env = server_command("m", python="/py", port=1, connector_config=config)
    assert env["INFERSCALE_REMOTE_URL"] == "redis://:hunter2@host"
    assert "hunter2" not in " ".join(argv)
    assert '"eviction": "cost"' in " ".join(argv)
    assert "INFERSCALE_REMOTE_URL" not in server_command("m", python="/py", port=1)[1]


@pytest.mark.parametrize("options", [{"port": 0}, {"port": 70000}, {"kv_cache_gib": 0}])
def test_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        server_command("m", python="/py", **{"port": 8000, **options})


# -- which interpreter ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("INFERSCALE_SERVER_PYTHON", raising=False)
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


def _interpreter(path: Path, *, has_vllm: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {0 if has_vllm else 1}\n")
    path.chmod(0o700)
    return path


def test_the_setting_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = _interpreter(tmp_path / "chosen", has_vllm=True)
    monkeypatch.setenv("INFERSCALE_SERVER_PYTHON", str(chosen))
    settings.cache_clear()
    assert find_server_python() == chosen


def test_a_setting_without_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "INFERSCALE_SERVER_PYTHON", str(_interpreter(tmp_path / "bare", has_vllm=False))
    )
    settings.cache_clear()
    with pytest.raises(ConfigurationError, match=r"bare.*cannot import vllm.*pip install"):
        find_server_python()


def test_then_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "find_spec", lambda _name: object())
    assert find_server_python() == Path(sys.executable)


def test_then_the_environment_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "find_spec", lambda _name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    with pytest.raises(ConfigurationError, match=r"\.venv-vllm.*make setup.*base_url"):
        find_server_python()
    beside = _interpreter(tmp_path / ".venv-vllm" / "bin" / "python", has_vllm=True)
    assert find_server_python() == beside
