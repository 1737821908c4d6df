from inferscale_sdk.recall.fusion import WeightedScoreFusion
from inferscale_sdk.recall.hybrid import DenseRecall, HybridRecall, LexicalRecall
from inferscale_sdk.testing.fake_embedder import FakeEmbedder
from inferscale_sdk.testing.recall_suite import RecallSuite


class TestHybridRecall(RecallSuite):
    def open_index(self, folder):
        return HybridRecall(folder / "recall.db", FakeEmbedder())


class TestHybridRecallByScore(RecallSuite):
    def open_index(self, folder):
        return HybridRecall(folder / "recall.db", FakeEmbedder(), fusion=WeightedScoreFusion())


class TestHybridRecallWithoutCache(RecallSuite):
    def open_index(self, folder):
        return HybridRecall(folder / "recall.db", FakeEmbedder(), cache_bytes=0)


class TestDenseRecall(RecallSuite):
    def open_index(self, folder):
        return DenseRecall(folder / "recall.db", FakeEmbedder())


class TestLexicalRecall(RecallSuite):
    has_similarity = False

    def open_index(self, folder):
        return LexicalRecall(folder / "recall.db")
