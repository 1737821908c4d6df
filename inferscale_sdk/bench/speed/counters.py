"""What vLLM itself counted, read from its ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from inferscale_sdk.errors import EngineUnavailable

__all__ = ["EXTERNAL_HITS", "counter_total", "read_counter", "settled_counter"]

EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
"""Prompt tokens that vLLM took from a connector instead of computing them."""

_TIMEOUT_SECONDS = 10.0


def counter_total(exposition: str, name: str) -> int:
    """The sum of a counter over all its label sets.

    Args:
        exposition: Prometheus text.
        name: The sample's full name, ``_total`` included.

    Returns:
        The sum; 0 when there is no such sample yet.
    """
    total = 0.0
    for line in exposition.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.split("{", 1)[0] == name:
            total += float(value)
    return round(total)


def read_counter(base_url: str, name: str) -> int:
    """The counter's value on the server at ``base_url``.

    Raises:
        EngineUnavailable: The server does not give its metrics.
    """
    url = f"{base_url.rstrip('/').removesuffix('/v1')}/metrics"
    try:
        response = httpx.get(url, timeout=_TIMEOUT_SECONDS)
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise EngineUnavailable(f"{url} does not answer: {error}") from error
    return counter_total(response.text, name)


def settled_counter(
    read: Callable[[], int],
    *,
    at_least: int,
    timeout_seconds: float = 5.0,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Read a counter that trails the requests it counts by a step or two.

    Returns:
        The first value that is ``at_least`` so high, else the last one seen within the limit.
    """
    step = 0.1
    value = read()
    for _ in range(round(timeout_seconds / step)):
        if value >= at_least:
            break
        sleep(step)
        value = read()
    return value
