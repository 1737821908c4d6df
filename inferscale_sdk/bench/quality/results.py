"""What was measured, one line of JSON for each question and arm: a stopped run goes on there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferscale_sdk.errors import StoreError

__all__ = ["Result", "ResultFile", "result_key"]


@dataclass(frozen=True, slots=True)
class Result:
    """One question with one arm.

    Args:
        key: See :func:`result_key`.
        conversation: Its id.
        question: Its id.
        category: Of the question.
        nll: Mean negative log-likelihood of the golden answer's tokens.
        kl: Mean KL divergence of next-token distributions from the full prompt's.
        prompt_tokens: Of the prompt.
        prefilled_tokens: Of it, computed for this request.
        answer: The model's own answer, ``None`` if it was not asked for.
        f1: LoCoMo's F1 of that answer.
        recall: Share of the golden words in it.
    """

    key: str
    conversation: str
    question: str
    category: int
    nll: float
    kl: float
    prompt_tokens: int
    prefilled_tokens: int
    answer: str | None = None
    f1: float | None = None
    recall: float | None = None


def result_key(**what: Any) -> str:
    """Names a measurement by everything it depends on."""
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class ResultFile:
    """Results by key, appended to a file as they come; and the full prompt's distributions.

    Args:
        folder: Where they are kept.

    Raises:
        StoreError: The file has a line that is no result.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._path = folder / "results.jsonl"
        self._results: dict[str, Result] = {}
        self.seconds = 0.0
        for result in self._read():
            self._results[result.key] = result

    def get(self, key: str) -> Result | None:
        """The result, if it is there."""
        return self._results.get(key)

    def add(self, result: Result) -> None:
        """Keep a result; written at once."""
        self._results[result.key] = result
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")

    def reference(self, key: str) -> NDArray[np.float16] | None:
        """Log-probabilities ``[answer, vocabulary]`` of the full prompt, if they were kept."""
        path = self._folder / "reference" / f"{key}.npy"
        if not path.exists():
            return None
        loaded: NDArray[np.float16] = np.load(path)
        return loaded

    def keep_reference(self, key: str, logprobs: NDArray[np.float16]) -> None:
        """Keep the full prompt's log-probabilities ``[answer, vocabulary]``."""
        path = self._folder / "reference" / f"{key}.npy"
        path.parent.mkdir(exist_ok=True)
        partial = path.with_suffix(".tmp.npy")
        np.save(partial, logprobs)
        partial.replace(path)

    def _read(self) -> Iterator[Result]:
        if not self._path.exists():
            return
        names = {field.name for field in fields(Result)}
        lines = self._path.read_text().splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            try:
                entry: Mapping[str, Any] = json.loads(line)
                yield Result(**{name: entry[name] for name in names})
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):  # the run was stopped while writing it
                    self._path.write_text("".join(lines[:-1]))
                    return
                raise StoreError(
                    f"line {number} of {self._path} is no result ({error}); move the file away"
                ) from error
