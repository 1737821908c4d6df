"""A sample life to try memory on, and the measurement behind ``inferscale demo``.

| module | what it holds |
|---|---|
| ``life`` | two invented people, their conversations, and questions about them |
| ``arms`` | one planned prompt, made into the three requests that are compared |
| ``measure`` | the order of the requests, and the clock |
| ``counters`` | what vLLM itself counted |
| ``report`` | medians, ratios, and the verdict |
| ``run`` | all of it in order: start, remember, encode, ask, check |
"""
