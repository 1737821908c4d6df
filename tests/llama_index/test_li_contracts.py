"""What the adapters count on in LlamaIndex: an upgrade that changes it fails here, by name."""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.memory import BaseMemory, BaseMemoryBlock
from llama_index.core.memory.types import BaseChatStoreMemory
from llama_index.core.schema import TextNode, TransformComponent
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.llms.openai.base import OpenAI
from llama_index.llms.openai_like import OpenAILike
from llama_index.memory.inferscale import InferScaleMemory, InferScaleMemoryBlock
from llama_index.retrievers.inferscale import InferScaleIngestion, InferScaleRetriever
from packaging.requirements import Requirement

ADAPTERS = {
    InferScaleLLM: (OpenAILike, FunctionCallingLLM, BaseLLM),
    InferScaleMemory: (BaseChatStoreMemory, BaseMemory),
    InferScaleMemoryBlock: (BaseMemoryBlock,),
    InferScaleRetriever: (BaseRetriever,),
    InferScaleIngestion: (TransformComponent,),
}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda c: c.__name__)
def test_class_hierarchy(adapter):
    names = [base.__name__ for base in inspect.getmro(adapter)]
    for base in ADAPTERS[adapter]:
        assert base.__name__ in names
        assert issubclass(adapter, base)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda c: c.__name__)
def test_nothing_is_left_abstract(adapter):
    assert not getattr(adapter, "__abstractmethods__", frozenset())


@pytest.mark.parametrize(
    ("base", "abstract"),
    [
        (BaseMemory, {"from_defaults", "get", "get_all", "put", "set", "reset"}),
        (BaseMemoryBlock, {"_aget", "_aput"}),
        (BaseRetriever, {"_retrieve"}),
        (TransformComponent, {"__call__"}),
    ],
)
def test_abstract_methods_of_the_bases(base, abstract):
    found = {
        name
        for name, member in inspect.getmembers(base)
        if getattr(getattr(member, "__func__", member), "__isabstractmethod__", False)
    }
    assert found == abstract


def overridden(adapter):
    for name, member in vars(adapter).items():
        function = getattr(member, "__func__", member)
        if not inspect.isfunction(function) or name.startswith("__"):
            continue
        for base in inspect.getmro(adapter)[1:]:
            if base.__module__.startswith("llama_index") and name in vars(base):
                inherited = vars(base)[name]
                yield name, function, getattr(inherited, "__func__", inherited)
                break


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda c: c.__name__)
def test_overridden_methods_take_what_the_inherited_ones_take(adapter):
    for name, ours, theirs in overridden(adapter):
        if not inspect.isfunction(inspect.unwrap(theirs)):
            continue  # a decorated field serializer
        mine = inspect.signature(ours).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in mine.values())
        for parameter in inspect.signature(theirs).parameters.values():
            known = parameter.name in mine or takes_any
            assert known, f"{adapter.__name__}.{name} does not take {parameter.name}"
        # Static inspection: a twin must stay a coroutine function.
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(
            inspect.unwrap(theirs)
        ), name


def test_what_is_overridden_still_exists():
    """The choke points of the model; were one renamed, requests would pass by the memory."""
    names = {name for name, *_ in overridden(InferScaleLLM)}
    assert names >= {
        "_chat",
        "_achat",
        "_stream_chat",
        "_astream_chat",
        "_complete",
        "_acomplete",
        "_stream_complete",
        "_astream_complete",
        "_get_model_kwargs",
        "_update_max_tokens",
        "_get_client",
        "_get_aclient",
    }
    for name in ("_chat", "_achat", "_stream_chat", "_astream_chat"):
        assert list(inspect.signature(getattr(OpenAI, name)).parameters) == [
            "self",
            "messages",
            "kwargs",
        ]
    for name in ("_complete", "_acomplete", "_stream_complete", "_astream_complete"):
        assert list(inspect.signature(getattr(OpenAI, name)).parameters) == [
            "self",
            "prompt",
            "kwargs",
        ]
    assert {"_client", "_aclient"} <= OpenAI.__private_attributes__.keys()


@pytest.mark.parametrize("name", ["_stream_chat", "_astream_chat", "_stream_complete"])
def test_streams_take_their_client_before_they_start(name):
    """So that the streams a call opens can be noted and closed."""
    source = inspect.getsource(inspect.unwrap(getattr(OpenAI, name)))
    assert source.index("_get_") < source.index("def gen()")


def test_fields_that_are_written_exist():
    assert {"message", "raw", "delta", "additional_kwargs"} <= ChatResponse.model_fields.keys()
    assert {"text", "raw", "delta", "additional_kwargs"} <= CompletionResponse.model_fields.keys()
    assert {"role", "blocks", "additional_kwargs"} <= ChatMessage.model_fields.keys()
    node = {"excluded_embed_metadata_keys", "excluded_llm_metadata_keys", "metadata_template"}
    assert node | {"text_template", "relationships"} <= TextNode.model_fields.keys()


def test_installed_versions_are_those_asked_for():
    folder = Path(__file__).parents[2] / "integrations" / "llama_index"
    asked = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    assert sorted(map(str, map(Requirement, asked))) == sorted(
        map(str, map(Requirement, requires("llama-index-inferscale") or []))
    )
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(version(requirement.name), prereleases=True)
