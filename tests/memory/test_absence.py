"""What a proof of absence looks for."""

from __future__ import annotations

from inferscale_sdk import Memory
from inferscale_sdk.memory.absence import gather
from inferscale_sdk.types import Namespace


def test_captures_that_were_never_recorded_are_looked_for(memory: Memory) -> None:
    """Whoever asked for them may have been killed before writing down whose they are."""
    (fact,) = memory.add("The safe is behind the clock.", user_id="carol")
    memory.store.note_keys(["asked-for"])
    memory.store.note_keys(["a-preamble"], lasting=True)
    evidence = gather(memory.store, [fact.id], Namespace(user_id="carol"))
    assert "asked-for" in evidence.keys
    assert "asked-for" in memory.store.forget_queue()
    assert "a-preamble" not in (*evidence.keys, *memory.store.forget_queue())
