"""Terms, fusion and exact dense search, each by itself."""

import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.recall import dense
from inferscale_sdk.recall.dense import DenseIndex
from inferscale_sdk.recall.fusion import ReciprocalRankFusion, WeightedScoreFusion
from inferscale_sdk.recall.hybrid import LexicalRecall
from inferscale_sdk.recall.terms import MAX_QUERY_TERMS, clean, question_terms, terms
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.recall_suite import ask, make_fact

# -- terms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Caroline's café, 2nd!", ["caroline", "s", "cafe", "2nd"]),
        ("snake_case-and.dots", ["snake", "case", "and", "dots"]),
        ("STRASSE straße", ["strasse", "strasse"]),
        ("ｆｕｌｌ ｗｉｄｔｈ", ["full", "width"]),
        ("私はお茶", ["私は", "はお", "お茶"]),
        ("茶", ["茶"]),
        ("iPhone用ケース", ["iphone", "用ケ", "ケー", "ース"]),
        ("🍵 \0 …", []),
    ],
)
def test_terms(text, expected):
    assert terms(text) == expected


def test_vowel_signs_stay_in_their_word():
    assert len(terms("हिन्दी में")) == 2


def test_stop_words_go_if_something_is_left():
    assert question_terms("what is the tea?") == ["tea"]
    assert question_terms("who are you") == ["who", "are", "you"]


def test_questions_are_bounded():
    assert len(question_terms(" ".join(f"w{i}" for i in range(500)))) == MAX_QUERY_TERMS


@given(st.text(st.characters(), max_size=60))
def test_terms_are_safe_to_quote(text):
    for term in terms(clean(text)):
        assert term
        assert not set(term) & set('"\0 _')


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.text(max_size=40))
def test_any_fact_and_any_question(text, question):
    index = LexicalRecall(":memory:")
    index.upsert([make_fact("f1", text)])
    assert set(ask(index, question)) <= {"f1"}
    if question_terms(text):
        assert ask(index, text) == ["f1"]
    index.close()


def test_english_endings_do_not_matter():
    index = LexicalRecall(":memory:")
    index.upsert([make_fact("f1", "She paints sunsets"), make_fact("f2", "He uses bikes")])

    assert ask(index, "Who is painting a sunset?") == ["f1"]
    assert ask(index, "used bike") == ["f2"]
    index.close()


# -- fusion --------------------------------------------------------------------------------------


def test_reciprocal_rank_fusion_is_the_formula():
    fusion = ReciprocalRankFusion(k=10, dense_weight=2, lexical_weight=1, lexical_floor=0)
    fused = fusion.fuse([("a", 0.9), ("b", 0.1)], [("b", 7.0), ("c", 1.0)])

    assert fused == {"a": 2 / 11, "b": 2 / 12 + 1 / 11, "c": 1 / 12}


def test_a_fact_far_below_the_best_lexical_score_is_not_found():
    fused = ReciprocalRankFusion(lexical_floor=0.5).fuse([], [("a", 10.0), ("b", 5.0), ("c", 4.9)])

    assert list(fused) == ["a", "b"]


def test_weighted_score_fusion_keeps_distances():
    fused = WeightedScoreFusion(0.5).fuse([("a", 0.8), ("b", 0.2)], [("b", 4.0), ("c", 2.0)])

    assert fused == pytest.approx({"a": 0.8, "b": 0.7, "c": 0.45})


@pytest.mark.parametrize("fusion", [ReciprocalRankFusion(), WeightedScoreFusion()])
def test_fusing_nothing(fusion):
    assert fusion.fuse([], []) == {}
    assert list(fusion.fuse([("a", 0.5)], [])) == list(fusion.fuse([], [("a", 0.5)])) == ["a"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReciprocalRankFusion(k=0),
        lambda: ReciprocalRankFusion(dense_weight=-1),
        lambda: ReciprocalRankFusion(lexical_weight=float("inf")),
        lambda: ReciprocalRankFusion(lexical_floor=1.5),
        lambda: WeightedScoreFusion(float("nan")),
    ],
)
def test_weights_are_checked(make):
    with pytest.raises(ConfigurationError):
        make()


# -- dense ---------------------------------------------------------------------------------------


def unit(generator, n, dim=16):
    vectors = generator.standard_normal((n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_dense_is_exact_through_changes():
    generator = np.random.default_rng(3)
    index, kept = DenseIndex(16), {}
    for step in range(12):
        items = np.arange(step * 40, step * 40 + 40)
        vectors = unit(generator, 40)
        index.add(items, vectors)
        kept |= dict(zip(items.tolist(), vectors, strict=True))
        for item in generator.choice(sorted(kept), 15, replace=False).tolist():
            del kept[item]
        index.keep(np.array(sorted(kept)))
        question = unit(generator, 1)[0]
        allowed = generator.choice(sorted(kept), 20, replace=False)
        for some in (None, np.sort(allowed)):
            names = sorted(kept) if some is None else some.tolist()
            scores = {n: round(float(kept[n] @ question), 5) for n in names}
            best = sorted(names, key=lambda n: -scores[n])[:10]
            found, similarity = index.search(question, 10, some)
            assert found.tolist() == best
            assert similarity == pytest.approx([scores[n] for n in best], abs=2e-5)
    items, cosines = index.similarities(question, np.array([sorted(kept)[0], 10**9]))
    assert items.tolist() == sorted(kept)[:1]
    assert cosines[0] == pytest.approx(float(kept[items[0]] @ question), abs=1e-5)


def test_dense_returns_every_tie_at_the_cut():
    index = DenseIndex(16)
    vector = unit(np.random.default_rng(0), 1)[0]
    index.add(np.arange(100), np.stack([vector] * 100))

    assert len(index.search(vector, 3)[0]) == 100


def test_dense_of_nothing():
    index = DenseIndex(4)
    nothing = np.zeros(0, np.int64)

    assert len(index.search(np.ones(4, np.float32), 5)[0]) == 0
    index.add(np.array([1]), np.ones((1, 4), np.float32) / 2)
    assert len(index.search(np.ones(4, np.float32), 5, nothing)[0]) == 0
    assert len(index.similarities(np.ones(4, np.float32), nothing)[0]) == 0


def test_a_gpu_copy_is_used_for_whole_searches_and_renewed(monkeypatch):
    """With a FAISS that says it has a GPU; the copy here is a CPU index."""
    real = dense._import_faiss()
    copies = []

    def to_gpu(resources, device, index):
        copies.append(real.clone_index(index))
        return copies[-1]

    faked = types.SimpleNamespace(
        **{
            name: getattr(real, name)
            for name in ("IndexFlatIP", "IDSelectorBitmap", "SearchParameters")
        },
        StandardGpuResources=object,
        get_num_gpus=lambda: 1,
        index_cpu_to_gpu=to_gpu,
    )
    monkeypatch.setattr(dense, "_import_faiss", lambda: faked)
    generator = np.random.default_rng(1)
    index, vectors = DenseIndex(16), unit(generator, 20)
    index.add(np.arange(10), vectors[:10])

    assert index.search(vectors[4], 1)[0].tolist() == [4]
    assert index.search(vectors[5], 1)[0].tolist() == [5]
    assert len(copies) == 1
    index.add(np.arange(10, 20), vectors[10:])
    assert index.search(vectors[15], 1)[0].tolist() == [15]
    assert index.search(vectors[15], 1, np.array([3]))[0].tolist() == [3]
    index.keep(np.arange(15))
    assert 15 not in index.search(vectors[15], 15)[0]
    assert len(copies) == 3


# -- the fake ------------------------------------------------------------------------------------


def test_fake_embedder_puts_shared_words_near():
    embedder = FakeEmbedder(64)
    near, far = embedder.embed(["Alice drinks green tea", "bicycles rust in winter"])
    question = embedder.embed_query("green TEA?")

    assert near @ question > 0.5 > abs(far @ question) + 0.1
    assert np.linalg.norm(embedder.embed([""])[0]) == pytest.approx(1)
    assert np.array_equal(FakeEmbedder(64).embed_query("tea"), embedder.embed_query("tea"))
    assert embedder.embed([]).shape == (0, 64)
