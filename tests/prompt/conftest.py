"""Small tokenizers in the Hugging Face format, trained here, with the shapes of chat template
that models in the wild have."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk.types import Fact, Namespace

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n\n' + message['content'] | trim + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DROPS_SYSTEM = (
    "{{ bos_token }}{% for message in messages if message['role'] != 'system' %}"
    "{{ '[' + message['role'] + '] ' + message['content'] + '\n' }}{% endfor %}"
)
WITH_TOOLS = (
    "{%- if tools %}\n{{- '<|im_start|>tools\n' }}\n{%- for tool in tools %}\n"
    "{{- tool | tojson }}\n{%- endfor %}\n{{- '<|im_end|>\n' }}\n{%- endif %}\n"
    "{%- for message in messages %}\n{%- if message.role == 'assistant' %}\n"
    "{{- '<|im_start|>assistant\n' }}{% generation %}{{ message.content }}{% endgeneration %}"
    "{%- if message.tool_calls %}{% for call in message.tool_calls %}"
    "{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}{% endif %}"
    "{{- '<|im_end|>\n' }}\n{%- else %}\n"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\n"
    "{%- endif %}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\n' }}\n{%- endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "trimming": TRIMMING,
    "no_system": NO_SYSTEM,
    "drops_system": DROPS_SYSTEM,
    "with_tools": WITH_TOOLS,
}

_CORPUS = [
    "The quick brown fox jumps over the lazy dog. These are your notes from earlier talks.",
    "system user assistant tools Where does Ann live? Ann lives in Oslo and works as a baker.",
    "Use these notes when they help to answer.\n- [8 May 2023] Ann: I like tea.\n\n- Bob:",
    "naïve café — 日本語 emoji 🙂 tabs\tand  double  spaces\r\n[INST] <s> 12345 {braces}",
] * 4
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

TokenizerFolder = Callable[..., Path]


def _train(kind: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=450, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<|endoftext|>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        fallback = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=700, special_tokens=_SPECIAL + fallback, show_progress=False
        )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    # Bytes are ordinary words of the vocabulary, as in models; the trainer knows no such kind.
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] in _SPECIAL]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    # Ordinary added tokens: one that a template writes, one that none does.
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>", "<table>")]
    )
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> TokenizerFolder:
    """Makes a folder as models have it, once for each kind."""
    made: dict[tuple[str, str], Path] = {}

    def make(template: str = "chatml", kind: str = "bytes") -> Path:
        if (template, kind) not in made:
            folder = tmp_path_factory.mktemp(f"{template}-{kind}")
            _train(kind).save(str(folder / "tokenizer.json"))
            config = {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<|endoftext|>",
                "eos_token": "<|im_end|>",
                "model_max_length": 4096,
            }
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            (folder / "chat_template.jinja").write_text(TEMPLATES[template])
            made[template, kind] = folder
        return made[template, kind]

    return make


NOW = datetime(2023, 5, 8, 12, tzinfo=UTC)


@pytest.fixture
def make_fact() -> Callable[..., Fact]:
    """A fact of Alice's, with anything changed."""

    def make(text: str = "I live in Oslo.", **changes: Any) -> Fact:
        values: dict[str, Any] = {
            "id": "fabc23",
            "version": 1,
            "text": text,
            "namespace": Namespace(user_id="alice"),
            "conversation_id": "c",
            "position": 0,
            "created_at": NOW,
            "updated_at": NOW,
        }
        return Fact(**{**values, **changes})

    return make
