"""The store against a dictionary: whatever the order of calls, both say the same."""

from datetime import UTC, datetime

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from inferscale_sdk.errors import NotFoundError
from inferscale_sdk.facts.base import EncodingRecord
from inferscale_sdk.facts.sqlite import SQLiteFactStore
from inferscale_sdk.types import Namespace, NewFact

USERS = ["ali", "alice"]
USER = st.sampled_from(USERS)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
METADATA = st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), max_size=2)


class StoreModel(RuleBasedStateMachine):
    ids = Bundle("ids")

    def __init__(self):
        super().__init__()
        self.store = SQLiteFactStore(":memory:")
        self.live = {}  # id -> [user, text, metadata, version]
        self.soft = {}  # id -> user
        self.texts = {}  # id -> every text it had
        self.keys = {}  # id -> (key, ids of its window)
        self.forget = set()
        self.serial = 0

    def teardown(self):
        self.store.close()

    @rule(
        target=ids,
        user=USER,
        texts=st.lists(TEXTS, max_size=3),
        metadata=METADATA,
    )
    def add(self, user, texts, metadata):
        facts = self.store.add(
            [NewFact(text, "c", metadata=metadata) for text in texts], Namespace(user_id=user)
        )
        for fact, text in zip(facts, texts, strict=True):
            self.live[fact.id] = [user, text, metadata, 1]
            self.texts[fact.id] = [text]
        return multiple(*(fact.id for fact in facts))

    @rule(
        fact_id=ids,
        user=USER,
        text=st.none() | TEXTS,
        metadata=st.none() | METADATA,
    )
    def update(self, fact_id, user, text, metadata):
        mine = self.live.get(fact_id)
        try:
            fact = self.store.update(fact_id, Namespace(user_id=user), text=text, metadata=metadata)
        except NotFoundError:
            assert mine is None or mine[0] != user
            return
        assert mine is not None and mine[0] == user
        new_text = mine[1] if text is None else text
        new_metadata = mine[2] if metadata is None else metadata
        if (new_text, new_metadata) != (mine[1], mine[2]):
            mine[3] += 1
            self.texts[fact_id].append(new_text)
        if new_text != mine[1]:
            self.invalidated({fact_id})
        mine[1], mine[2] = new_text, new_metadata
        assert (fact.text, fact.metadata, fact.version) == (mine[1], mine[2], mine[3])

    @rule(fact_id=ids, user=USER, hard=st.booleans())
    def delete(self, fact_id, user, hard):
        there = self.live.get(fact_id, [None])[0] == user
        there = there or (hard and self.soft.get(fact_id) == user)
        try:
            self.store.delete(fact_id, Namespace(user_id=user), hard=hard)
        except NotFoundError:
            assert not there
            return
        assert there
        self.gone({fact_id}, hard)

    @rule(user=USER, hard=st.booleans())
    def delete_all(self, user, hard):
        ids = {i for i, mine in self.live.items() if mine[0] == user}
        if hard:
            ids |= {i for i, owner in self.soft.items() if owner == user}
        deleted = self.store.delete_all(Namespace(user_id=user), hard=hard)
        assert {fact.id for fact in deleted} == ids
        self.gone(ids, hard)

    @rule(fact_id=ids, window=st.lists(ids, max_size=3, unique=True), late=st.booleans())
    def record(self, fact_id, window, late):
        self.serial += 1
        key = f"k{self.serial}"
        version = self.live[fact_id][3] if fact_id in self.live else 1
        self.store.record_encodings(
            [EncodingRecord(fact_id, version - late, "p", key, 3, tuple(window), NOW)]
        )
        user = self.live.get(fact_id, [None])[0]
        good = user and not late and all(self.live.get(w, [None])[0] == user for w in window)
        if not good:
            self.forget.add(key)
            return
        if fact_id in self.keys:
            self.forget.add(self.keys[fact_id][0])
        self.keys[fact_id] = (key, set(window))

    def gone(self, ids, hard):
        for fact_id in ids:
            user = self.live.pop(fact_id, [self.soft.get(fact_id)])[0]
            self.soft[fact_id] = user
            if hard:
                del self.soft[fact_id]
                self.texts[fact_id] = [None]
        self.invalidated(ids)

    def invalidated(self, ids):
        for fact_id in [i for i, (_, window) in self.keys.items() if i in ids or window & ids]:
            self.forget.add(self.keys.pop(fact_id)[0])

    @invariant()
    def same_facts(self):
        for user in USERS:
            facts = self.store.find(Namespace(user_id=user))
            assert {f.id: [user, f.text, f.metadata, f.version] for f in facts} == {
                i: mine for i, mine in self.live.items() if mine[0] == user
            }
            assert self.store.count(Namespace(user_id=user)) == len(facts)
            positions = [fact.position for fact in facts]
            assert len(set(positions)) == len(positions)

    @invariant()
    def same_ledgers(self):
        found = self.store.encodings(list(self.texts), "p")
        assert {i: (r.key, set(r.context_fact_ids)) for i, r in found.items()} == self.keys
        assert {f.id for f in self.store.pending("p")} == set(self.live) - set(self.keys)
        assert self.store.count_pending("p") == len(self.live) - len(self.keys)
        assert set(self.store.forget_queue()) == self.forget

    @invariant()
    def erased_texts_are_gone(self):
        told = {}
        for event in self.store.changes(0):
            if event.kind in ("add", "update"):
                told.setdefault(event.fact_id, []).append(event.new_text)
        for fact_id, texts in told.items():
            if self.texts[fact_id] == [None]:
                assert set(texts) == {None}
            else:
                assert texts == self.texts[fact_id]


NOW = datetime(2024, 1, 1, tzinfo=UTC)
StoreModel.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestStoreModel = StoreModel.TestCase
