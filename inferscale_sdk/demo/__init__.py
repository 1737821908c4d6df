"""A sample life to try memory on, and the measurement behind ``inferscale demo``.

| module | what it holds |
|---|---|
| ``life`` | two invented people, their conversations, and questions about them |
| ``measure`` | the order of the requests, and the clock |
| ``report`` | medians, ratios, and the verdict |
| ``run`` | all of it in order: start, remember, encode, ask, check |

Arms, clock and counters are those of :mod:`inferscale_sdk.bench.speed`.
"""
