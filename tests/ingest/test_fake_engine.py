"""The double is held to what every engine must do."""

from __future__ import annotations

import pytest

from inferscale_sdk.testing.engine_suite import EngineSuite
from inferscale_sdk.testing.fake_engine import FakeEngine
from inferscale_sdk.testing.fake_tokenizer import FakeTokenizer


class TestFakeEngine(EngineSuite):
    @pytest.fixture
    def engine(self):
        with FakeEngine() as engine:
            yield engine


def test_fake_tokens_are_invertible():
    tokenizer = FakeTokenizer()
    text = tokenizer.render([{"role": "user", "content": "héllo <|end|> ☃"}])
    assert tokenizer.decode_all(tokenizer.encode(text)) == text
    plain = tokenizer.encode_plain("<|end|>")
    assert all(i < 256 for i in plain)
    assert tokenizer.decode(plain) == "<|end|>"
