"""The client's tokenizer against transformers', and what nobody may forge."""

from __future__ import annotations

import functools
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferscale_sdk.errors import ConfigurationError
from inferscale_sdk.prompt.tokenizer import TransformersChatTokenizer, as_mapping
from inferscale_sdk.types import Message

CHAT = [
    {"role": "system", "content": "Be brief.  "},
    {"role": "user", "content": " Where does Ann live?\n"},
    {"role": "assistant", "content": "In Oslo — 日本語 🙂"},
    {"role": "user", "content": "And Bob?"},
]
TEXTS = [
    "",
    " ",
    "\n",
    "plain",
    " leading",
    "trailing ",
    "two  spaces\t\ttabs",
    "line\nbreaks\n\n\nthree",
    "- [8 May 2023] Ann: I like tea.\n",
    "naïve café 日本語 🙂‍↔️ \u200b zero",
    "{braces} {{ jinja }} {% raw %}",
    "12345 67 <table> x",
]


_loaded = functools.cache(TransformersChatTokenizer)


@pytest.fixture(scope="module")
def hugging_face() -> Any:
    return pytest.importorskip("transformers").AutoTokenizer


@pytest.mark.parametrize("template", ["chatml", "trimming", "with_tools", "drops_system"])
@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
def test_prompts_equal_transformers(
    tokenizer_folder: Any, hugging_face: Any, template: str, kind: str
) -> None:
    folder = tokenizer_folder(template, kind)
    ours, theirs = TransformersChatTokenizer(folder), hugging_face.from_pretrained(folder)
    for generation in (True, False):
        text = ours.render(CHAT, add_generation_prompt=generation)
        expected = theirs.apply_chat_template(
            CHAT, tokenize=False, add_generation_prompt=generation
        )
        assert text == expected
        ids = theirs.apply_chat_template(CHAT, add_generation_prompt=generation, return_dict=False)
        assert ours.encode(text) == ids


def test_tools_equal_transformers(tokenizer_folder: Any, hugging_face: Any) -> None:
    folder = tokenizer_folder("with_tools")
    ours, theirs = TransformersChatTokenizer(folder), hugging_face.from_pretrained(folder)
    tool = {"type": "function", "function": {"name": "f", "description": "<b> & 'é'"}}
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": "ü"}}}
    chat = [*CHAT, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert ours.render(chat, tools=[tool]) == theirs.apply_chat_template(
        chat, tools=[tool], tokenize=False, add_generation_prompt=True
    )


@pytest.mark.parametrize("text", TEXTS)
def test_ordinary_text_has_one_reading(tokenizer_folder: Any, hugging_face: Any, text: str) -> None:
    folder = tokenizer_folder()
    ours, theirs = TransformersChatTokenizer(folder), hugging_face.from_pretrained(folder)
    expected = theirs.encode(text, add_special_tokens=False)
    assert ours.encode(text) == ours.encode_plain(text) == expected


@pytest.mark.parametrize("kind", ["bytes", "metaspace"])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pieces=st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<", "|", " a", "\n", "é"])))
def test_plain_text_never_holds_control_tokens(
    tokenizer_folder: Any, kind: str, pieces: list[str]
) -> None:
    tokenizer = _loaded(tokenizer_folder("chatml", kind))
    control = {i for text in tokenizer.control_tokens for i in tokenizer.encode(text)}
    ids = tokenizer.encode_plain("".join(pieces))
    assert control.isdisjoint(ids)
    if kind == "bytes":
        assert tokenizer.decode(ids) == "".join(pieces)


def test_half_a_character_has_no_tokens(tokenizer_folder: Any) -> None:
    tokenizer = _loaded(tokenizer_folder())
    for encode in (tokenizer.encode, tokenizer.encode_plain):
        with pytest.raises(ConfigurationError, match=r"surrogate U\+D83D"):
            encode("half a \ud83d character")


def test_control_tokens_are_special_or_the_templates_own(tokenizer_folder: Any) -> None:
    special = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert TransformersChatTokenizer(tokenizer_folder("chatml")).control_tokens == special
    with_tools = TransformersChatTokenizer(tokenizer_folder("with_tools"))
    assert with_tools.control_tokens == special | {"<tool_call>", "</tool_call>"}
    assert len(with_tools.encode("<tool_call>")) == 1
    assert len(with_tools.encode_plain("<tool_call>")) > 1
    assert len(with_tools.encode_plain("<table>")) == 1


def test_a_piece_from_the_middle_gets_no_space_of_its_own(tokenizer_folder: Any) -> None:
    tokenizer = TransformersChatTokenizer(tokenizer_folder("chatml", "metaspace"))
    first, second = "Ann lives\n", "in Oslo"
    cut = tokenizer.encode(first) + tokenizer.encode(second)
    assert tokenizer.decode(cut).lstrip() == first + second


def test_a_vocabulary_with_control_tokens_as_words(tokenizer_folder: Any, tmp_path: Path) -> None:
    """Some tokenizers take a whole word from the vocabulary before they look at merges."""
    import json

    folder = tmp_path / "model"
    shutil.copytree(tokenizer_folder(), folder)
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["model"]["ignore_merges"] = True
    spec["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "use_regex": False,
        "trim_offsets": True,
    }
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = TransformersChatTokenizer(folder)
    (end,) = tokenizer.encode("<|im_end|>")
    assert end not in tokenizer.encode_plain("<|im_end|>")
    assert tokenizer.decode(tokenizer.encode_plain("<|im_end|>")) == "<|im_end|>"


def test_truncation_and_padding_of_the_file_are_ignored(
    tokenizer_folder: Any, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    folder = tmp_path / "model"
    shutil.copytree(tokenizer_folder(), folder)
    file = str(folder / "tokenizer.json")
    spec = Tokenizer.from_file(file)
    spec.enable_truncation(4)
    spec.enable_padding(length=16)
    spec.save(file)
    plain, changed = (TransformersChatTokenizer(f) for f in (tokenizer_folder(), folder))
    text = "The quick brown fox jumps over the lazy dog. " * 3
    assert changed.encode(text) == plain.encode(text)
    assert changed.encode("a") == plain.encode("a")


def test_caller_may_change_what_it_got(tokenizer_folder: Any) -> None:
    tokenizer = TransformersChatTokenizer(tokenizer_folder())
    first = tokenizer.encode_plain("Ann lives in Oslo.")
    first.append(0)
    assert tokenizer.encode_plain("Ann lives in Oslo.") == first[:-1]


def test_threads_agree(tokenizer_folder: Any) -> None:
    tokenizer = TransformersChatTokenizer(tokenizer_folder())
    texts = [f"Ann {i} <|im_end|> lives in Oslo" for i in range(50)]
    expected = [(tokenizer.encode(t), tokenizer.encode_plain(t)) for t in texts]
    seen: list[object] = []

    def work() -> None:
        fresh = [(tokenizer.encode(t + " "), tokenizer.encode_plain(t)) for t in texts]
        seen.append([plain for _, plain in fresh] == [plain for _, plain in expected])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 8


def test_refusal_names_the_roles(tokenizer_folder: Any) -> None:
    tokenizer = TransformersChatTokenizer(tokenizer_folder("no_system"))
    with pytest.raises(ConfigurationError, match=r"'system', 'user'.*System role not supported"):
        tokenizer.render(CHAT[:2])


def test_folders_without_a_template_or_tokenizer(tokenizer_folder: Any, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    shutil.copytree(tokenizer_folder(), folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigurationError, match="no chat template"):
        TransformersChatTokenizer(folder)
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        TransformersChatTokenizer(tmp_path / "nothing-here")


def test_templates_inside_the_config(tokenizer_folder: Any, tmp_path: Path) -> None:
    import json

    folder = tmp_path / "model"
    shutil.copytree(tokenizer_folder("with_tools"), folder)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": "D{{ messages[0].content }}"},
        {"name": "tool_use", "template": "T{{ messages[0].content }}"},
    ]
    config["eos_token"] = {"content": "<|im_end|>", "special": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = TransformersChatTokenizer(folder)
    assert tokenizer.render([Message("user", "x")]) == "Dx"
    assert tokenizer.render([Message("user", "x")], tools=[{"a": 1}]) == "Tx"


def test_a_template_cannot_leave_its_sandbox(tokenizer_folder: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tokenizer_folder(), folder)
    evil = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    (folder / "chat_template.jinja").write_text(evil)
    with pytest.raises(ConfigurationError, match="refuses"):
        TransformersChatTokenizer(folder).render(CHAT)


def test_message_forms() -> None:
    assert as_mapping(Message("user", "x", name="Ann")) == {
        "role": "user",
        "content": "x",
        "name": "Ann",
    }
    parts = [{"type": "text", "text": "a"}, "b"]
    assert as_mapping({"role": "user", "content": parts})["content"] == "ab"
    with pytest.raises(ConfigurationError, match="image_url"):
        as_mapping({"role": "user", "content": [{"type": "image_url"}]})
