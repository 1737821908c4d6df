"""Which model made a segment: a digest that both engines and every process agree on."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferscale_sdk.errors import ConfigurationError

__all__ = ["adapter_fingerprint", "model_fingerprint", "model_folder", "weights_digest"]

_CHUNK_BYTES = 8 << 20
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
# Fields that say who wrote the file or how to generate, not what the keys and values are.
_IRRELEVANT = frozenset(
    {
        "_name_or_path",
        "name_or_path",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "use_cache",
        "architectures_version",
        "_commit_hash",
        "_attn_implementation_autoset",
    }
)


def weights_digest(model_dir: Path, *, cache_file: Path | None = None) -> str:
    """Digest over the bytes of every weight file in ``model_dir``.

    Args:
        model_dir: A folder with safetensors (or older) weight files.
        cache_file: A JSON file that remembers digests by path, size and modification time, so
            that a large model is read once and not at every start.

    Returns:
        32 hex digits.

    Raises:
        ConfigurationError: The folder has no weight files.
    """
    files = sorted(p for p in model_dir.iterdir() if p.suffix in _WEIGHT_SUFFIXES)
    if not files:
        raise ConfigurationError(
            f"{str(model_dir)!r} holds no weight files ({', '.join(_WEIGHT_SUFFIXES)}); "
            "give the folder of a downloaded model"
        )
    known = _read_cache(cache_file)
    whole = hashlib.blake2b(digest_size=16)
    fresh: dict[str, str] = {}
    for path in files:
        stat = path.stat()
        # The resolved path: hub caches link to files named by their content.
        tag = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        digest = known.get(tag)
        if digest is None:
            digest = fresh[tag] = _file_digest(path)
        whole.update(path.name.encode() + b"\0" + digest.encode())
    if fresh and cache_file is not None:
        _write_cache(cache_file, {**known, **fresh})
    return whole.hexdigest()


def model_folder(model: str, revision: str | None = None) -> Path:
    """The folder of a model's files: a local one, or the hub cache's snapshot.

    Args:
        model: Folder or name.
        revision: Of a name.
    """
    path = Path(model)
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, local_files_only=True))


def model_fingerprint(
    config: Mapping[str, Any], *, weights: str, dtype: str, cache_dtype: str = "auto"
) -> str:
    """Digest of everything about a model that its keys and values depend on.

    Args:
        config: The model's configuration as a mapping (Hugging Face ``config.json``), rotary
            parameters included.
        weights: What :func:`weights_digest` returned.
        dtype: Dtype the model computes in, e.g. ``bfloat16``.
        cache_dtype: Dtype of the KV cache; ``auto`` is the model's.

    Returns:
        32 hex digits.
    """
    relevant = {k: v for k, v in config.items() if k not in _IRRELEVANT}
    body = json.dumps(
        [relevant, weights, dtype, cache_dtype], sort_keys=True, default=str, separators=(",", ":")
    )
    return hashlib.blake2b(body.encode(), digest_size=16, person=b"ifs-model-v1").hexdigest()


def adapter_fingerprint(base: str, name: str, folder: Path) -> str:
    """Digest of a model with a LoRA adapter: other keys and values than the base model's.

    Args:
        base: The base model's fingerprint.
        name: Under which the adapter is served.
        folder: The adapter's files.

    Returns:
        32 hex digits.

    Raises:
        ConfigurationError: The folder has no weight files.
        OSError: It cannot be read.
    """
    body = json.dumps([base, name, weights_digest(folder)])
    return hashlib.blake2b(body.encode(), digest_size=16, person=b"ifs-adapter-v1").hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _read_cache(cache_file: Path | None) -> dict[str, str]:
    if cache_file is None:
        return {}
    try:
        content = json.loads(cache_file.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_cache(cache_file: Path, content: Mapping[str, str]) -> None:
    """Replace the cache atomically; a cache that cannot be written only costs time."""
    try:
        cache_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=cache_file.parent, prefix=".fingerprints-")
        with os.fdopen(handle, "w") as file:
            json.dump(content, file)
        Path(name).replace(cache_file)
    except OSError:
        return
