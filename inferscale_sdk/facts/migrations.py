"""The fact store's schema.

| table | what |
|---|---|
| ``store`` | the store's secret |
| ``fact`` | the current version of every fact, softly deleted ones included |
| ``event`` | history and change feed; earlier texts live only here |
| ``profile`` | profiles that were ever asked for |
| ``encoding`` | which segment a fact has under a profile |
| ``encoding_context`` | the facts in a segment's window, looked up from the window's side |
| ``pending`` | live facts without an encoding, in the order in which they are encoded |
| ``forget`` | keys still to be dropped on the server |
| ``noted`` | keys whose capture was ever asked for, until they were dropped on the server |

``pending`` is kept by triggers: with a hundred thousand facts it must not be a search for what is
absent. Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

from inferscale_sdk.sqlite.migrations import Migration, Schema

__all__ = ["FACT_SCHEMA"]

_FACTS = Migration(
    1,
    "facts and their history",
    (
        """CREATE TABLE store (
            name TEXT PRIMARY KEY,
            value BLOB NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE fact (
            pk INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            app_id TEXT, user_id TEXT, agent_id TEXT, run_id TEXT,
            partition TEXT NOT NULL,
            conversation_id TEXT NOT NULL,
            position INTEGER NOT NULL,
            version INTEGER NOT NULL,
            text TEXT NOT NULL,
            speaker TEXT,
            source TEXT,
            metadata TEXT NOT NULL,
            event_us INTEGER,
            created_us INTEGER NOT NULL,
            updated_us INTEGER NOT NULL,
            deleted_us INTEGER,
            UNIQUE (partition, conversation_id, position)
        )""",
        # Each serves scope, order and the test for deletion without touching the row.
        *(
            f"""CREATE INDEX fact_{column} ON fact
                ({column}_id, created_us, position, pk, deleted_us)
                WHERE {column}_id IS NOT NULL"""
            for column in ("app", "user", "agent", "run")
        ),
        """CREATE TABLE event (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            fact_id TEXT NOT NULL,
            version INTEGER NOT NULL,
            app_id TEXT, user_id TEXT, agent_id TEXT, run_id TEXT,
            at_us INTEGER NOT NULL,
            old_text TEXT,
            new_text TEXT
        )""",
        "CREATE INDEX event_fact ON event (fact_id, seq)",
    ),
)

_LEDGERS = Migration(
    2,
    "ledgers of encodings and of keys to forget",
    (
        "CREATE TABLE profile (pk INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
        """CREATE TABLE encoding (
            pk INTEGER PRIMARY KEY AUTOINCREMENT,
            profile_pk INTEGER NOT NULL REFERENCES profile,
            fact_pk INTEGER NOT NULL REFERENCES fact ON DELETE CASCADE,
            version INTEGER NOT NULL,
            key TEXT NOT NULL,
            n_tokens INTEGER NOT NULL,
            context TEXT NOT NULL,
            created_us INTEGER NOT NULL,
            UNIQUE (profile_pk, fact_pk)
        )""",
        "CREATE INDEX encoding_fact ON encoding (fact_pk)",
        "CREATE INDEX encoding_key ON encoding (key)",
        """CREATE TABLE encoding_context (
            fact_pk INTEGER NOT NULL REFERENCES fact ON DELETE CASCADE,
            encoding_pk INTEGER NOT NULL REFERENCES encoding ON DELETE CASCADE,
            PRIMARY KEY (fact_pk, encoding_pk)
        ) WITHOUT ROWID""",
        "CREATE INDEX encoding_context_encoding ON encoding_context (encoding_pk)",
        """CREATE TABLE pending (
            profile_pk INTEGER NOT NULL REFERENCES profile,
            partition TEXT NOT NULL,
            conversation_id TEXT NOT NULL,
            position INTEGER NOT NULL,
            fact_pk INTEGER NOT NULL REFERENCES fact ON DELETE CASCADE,
            PRIMARY KEY (profile_pk, partition, conversation_id, position)
        ) WITHOUT ROWID""",
        "CREATE INDEX pending_fact ON pending (fact_pk)",
        "CREATE TABLE forget (pk INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE)",
        """CREATE TRIGGER fact_added AFTER INSERT ON fact BEGIN
            INSERT INTO pending SELECT
                pk, NEW.partition, NEW.conversation_id, NEW.position, NEW.pk FROM profile;
        END""",
        """CREATE TRIGGER fact_deleted AFTER UPDATE OF deleted_us ON fact
            WHEN NEW.deleted_us IS NOT NULL BEGIN
            DELETE FROM pending WHERE fact_pk = NEW.pk;
        END""",
        """CREATE TRIGGER encoding_added AFTER INSERT ON encoding BEGIN
            DELETE FROM pending WHERE fact_pk = NEW.fact_pk AND profile_pk = NEW.profile_pk;
        END""",
        """CREATE TRIGGER encoding_dropped AFTER DELETE ON encoding BEGIN
            INSERT OR IGNORE INTO pending SELECT
                OLD.profile_pk, partition, conversation_id, position, pk
                FROM fact WHERE pk = OLD.fact_pk AND deleted_us IS NULL;
        END""",
    ),
)

_MIXED = """SELECT e.pk FROM encoding AS e
    JOIN encoding_context AS c ON c.encoding_pk = e.pk
    JOIN fact AS own ON own.pk = e.fact_pk
    JOIN fact AS other ON other.pk = c.fact_pk
    WHERE own.app_id IS NOT other.app_id OR own.user_id IS NOT other.user_id
        OR own.agent_id IS NOT other.agent_id OR own.run_id IS NOT other.run_id"""

_ONE_OWNER = Migration(
    3,
    "windows of one owner: KV that was made behind another agent's or run's facts goes",
    (
        f"INSERT OR IGNORE INTO forget (key) SELECT key FROM encoding WHERE pk IN ({_MIXED})",  # noqa: S608
        f"DELETE FROM encoding WHERE pk IN ({_MIXED})",  # noqa: S608
        # A key is queued only while no record names it.
        "DELETE FROM forget WHERE key IN (SELECT key FROM encoding)",
    ),
)

_NOTED = Migration(
    4,
    "keys are noted before they are captured, so that orphans are found",
    (
        """CREATE TABLE noted (
            key TEXT PRIMARY KEY,
            noted_us INTEGER NOT NULL,
            lasting INTEGER NOT NULL DEFAULT 0
        ) WITHOUT ROWID""",
        "INSERT OR IGNORE INTO noted (key, noted_us) SELECT key, created_us FROM encoding",
        "INSERT OR IGNORE INTO noted (key, noted_us) SELECT key, 0 FROM forget",
    ),
)

_DROPPED = Migration(
    5,
    "keys that a server has dropped are known for a while, so that another one can be asked",
    (
        """CREATE TABLE dropped (
            key TEXT PRIMARY KEY,
            dropped_us INTEGER NOT NULL
        ) WITHOUT ROWID""",
        # What is older than 30 days goes with every deletion, which must not read them all.
        "CREATE INDEX dropped_when ON dropped (dropped_us)",
    ),
)

FACT_SCHEMA = Schema(
    "fact store",
    0x49465346,  # "IFSF"
    (_FACTS, _LEDGERS, _ONE_OWNER, _NOTED, _DROPPED),
)
