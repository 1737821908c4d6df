"""The kernel for GPUs under triton's interpreter, for machines without one."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any
from unittest import mock

__all__ = ["interpreted_kernel"]

_MODULE = "inferscale_sdk.injection.triton_kernel"


def interpreted_kernel() -> Any:
    """The kernel as ``TRITON_INTERPRET=1`` makes it. Nothing else sees that setting.

    Raises:
        ImportError: triton is not installed.
    """
    compiled = importlib.import_module(_MODULE)
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
        del sys.modules[_MODULE]
        try:
            kernel = importlib.import_module(_MODULE).write_pages
        finally:
            sys.modules[_MODULE] = compiled
            package, _, name = _MODULE.rpartition(".")
            setattr(sys.modules[package], name, compiled)
    return kernel
