"""The recall file's schema.

| table | what |
|---|---|
| ``state`` | the cursor into the change feed, the mark of the event there; name of the vectors |
| ``partition`` | an isolation domain, with counters of its changes |
| ``item`` | a fact: owner, text, what filters need; a changed one gets a new, higher ``pk`` |
| ``vector`` | its vector, float32 little-endian |
| ``lexicon`` | its terms, each marked with the number of its partition |

``generation`` grows with every change of a partition, ``epoch`` when vectors were filled in for
items that were already there. Everything here is derived from the fact store: deleting the file
costs time, not memories.
"""

from __future__ import annotations

from inferscale_sdk.sqlite.migrations import Migration, Schema

__all__ = ["RECALL_SCHEMA"]

_ITEMS = Migration(
    1,
    "items, vectors and terms",
    (
        "CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
        """CREATE TABLE partition (
            pk INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL UNIQUE,
            app_id TEXT,
            owner_kind TEXT NOT NULL,
            owner_id TEXT,
            generation INTEGER NOT NULL DEFAULT 0,
            epoch INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX partition_owner ON partition (owner_kind, owner_id)",
        """CREATE TABLE item (
            pk INTEGER PRIMARY KEY AUTOINCREMENT,
            fact_id TEXT NOT NULL UNIQUE,
            version INTEGER NOT NULL,
            partition_pk INTEGER NOT NULL REFERENCES partition,
            app_id TEXT, user_id TEXT, agent_id TEXT, run_id TEXT,
            text TEXT NOT NULL,
            metadata TEXT NOT NULL,
            time_us INTEGER NOT NULL,
            n_terms INTEGER NOT NULL
        )""",
        # Lists a partition in order, and answers scope and time without touching the rows.
        """CREATE INDEX item_partition ON item
            (partition_pk, pk, app_id, user_id, agent_id, run_id, time_us)""",
        *(
            f"""CREATE INDEX item_{column} ON item ({column}_id, partition_pk)
                WHERE {column}_id IS NOT NULL"""
            for column in ("app", "user", "agent", "run")
        ),
        """CREATE TABLE vector (
            item_pk INTEGER PRIMARY KEY REFERENCES item ON DELETE CASCADE,
            data BLOB NOT NULL
        )""",
        # Terms arrive cut and folded; "ascii" leaves other scripts alone, "porter" stems English.
        """CREATE VIRTUAL TABLE lexicon USING fts5
            (terms, tokenize = "porter ascii tokenchars '_'", detail = none)""",
    ),
)

RECALL_SCHEMA = Schema("recall index", 0x49465352, (_ITEMS,))  # "IFSR"
