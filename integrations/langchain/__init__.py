"""The names of ``langchain_inferscale``, under their place in a checkout."""

from __future__ import annotations

from typing import Any

import langchain_inferscale
from langchain_inferscale import __all__ as __all__


def __getattr__(name: str) -> Any:
    return getattr(langchain_inferscale, name)


def __dir__() -> list[str]:
    return sorted(__all__)
