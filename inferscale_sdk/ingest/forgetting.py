"""Telling an engine to drop the KV of facts that changed or went."""

from __future__ import annotations

from inferscale_sdk.engines.base import Engine
from inferscale_sdk.facts.base import FactStore

__all__ = ["send_forgets"]

FORGET_BATCH = 10_000


def send_forgets(store: FactStore, engine: Engine) -> int:
    """Have the keys on the store's forget ledger dropped; returns how many.

    They stay on the ledger until the engine has answered.

    Raises:
        EngineError: The engine failed or refused; the keys stay queued.
        StoreError: The store failed.
    """
    sent = 0
    while keys := store.forget_queue(FORGET_BATCH):
        if not engine.info().can_inject:
            # The KV lies on a server that is not this one; its turn will come.
            break
        engine.forget(keys)
        store.forget_done(keys)
        sent += len(keys)
    return sent
