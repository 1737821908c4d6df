"""The embedded engine: a Hugging Face model in this process, with attention-layer memory.

| module | question it answers |
|---|---|
| ``engine`` | what callers see |
| ``runtime`` | what does an engine own |
| ``requests``, ``options`` | what of a plan reaches the model, and what is reported |
| ``loading`` | which model is this, where does it run |
| ``proving``, ``unrotated`` | may segments be injected into it, how do its keys turn |
| ``segments`` | where does KV lie |
| ``scheduler``, ``batch`` | who computes next |
| ``jobs``, ``events`` | what is a request asked and told |
| ``runner``, ``cache`` | forward passes and the cache object |
| ``sampling``, ``text`` | which token next, and what does it say |

Importing it loads neither torch nor transformers; building an engine does.
"""

from inferscale_sdk.engines.transformers.engine import TransformersEngine

__all__ = ["TransformersEngine"]
