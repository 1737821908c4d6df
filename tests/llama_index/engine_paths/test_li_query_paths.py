"""Query engines: synthesizers, postprocessors, documents."""

from __future__ import annotations

import pytest
from llama_index.core import Document, get_response_synthesizer
from llama_index.core.postprocessor import LLMRerank, LongContextReorder, SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.retrievers.inferscale import InferScaleRetriever
from paths_scene import ASK, FACTS, MARKS

pytestmark = MARKS


@pytest.mark.parametrize(
    ("mode", "requests"),
    [
        ("compact", [3]),
        ("tree_summarize", [3]),
        # One chunk a call: each is injected by itself, and nothing is saved on the others.
        ("refine", [1, 1, 1]),
        ("accumulate", [1, 1, 1]),
    ],
)
async def test_query_engine(llm, retriever, seen, mode, requests):
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, response_mode=mode)
    engine.query(ASK)
    seen.second_pass()
    response = engine.query(ASK)
    assert {n.text for n in response.source_nodes} == set(FACTS["second"])
    await engine.aquery(ASK)
    seen.assert_injected(requests * 2)


async def test_query_engine_streams(llm, retriever, seen):
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, streaming=True)
    list(engine.query(ASK).response_gen)
    seen.second_pass()
    list(engine.query(ASK).response_gen)
    seen.assert_injected([3])


async def test_postprocessors(llm, retriever, seen):
    engine = RetrieverQueryEngine.from_args(
        retriever,
        llm=llm,
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.1), LongContextReorder()],
    )
    engine.query(ASK)
    seen.second_pass()
    response = engine.query(ASK)
    seen.assert_injected([len(response.source_nodes)])


async def test_llm_rerank(llm, retriever, seen):
    """The reranker is shown the texts; what it keeps is injected."""
    asked = []

    def choose(answer: str, num_choices: int):
        # A model of this size does not answer in the format asked for.
        asked.append(answer)
        return [2, 1], [9.0, 5.0]

    plain = llm.without_memory()
    rerank = LLMRerank(llm=plain, top_n=2, parse_choice_select_answer_fn=choose)
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, node_postprocessors=[rerank])
    engine.query(ASK)
    seen.second_pass()
    response = engine.query(ASK)
    assert len(asked) == 2
    assert [n.score for n in response.source_nodes] == [9.0, 5.0]
    assert seen.reports[0].prompt_tokens > 100
    seen.assert_injected([0, 2])


async def test_documents_with_chunks_encoded_ahead(llm, memory, user_id, seen):
    documents = [
        Document(text="\n\n".join(facts) * 6, id_=part, metadata={"part": part})
        for part, facts in FACTS.items()
    ]
    library = seen.follow(
        InferScaleRetriever.from_documents(
            documents, memory, user_id=user_id, run_id="docs", top_k=2
        )
    )
    assert memory.wait_encoded(120, user_id=user_id)
    engine = RetrieverQueryEngine.from_args(library, llm=llm)
    engine.query(ASK)
    seen.second_pass()
    response = engine.query(ASK)
    seen.assert_injected([2])
    assert {n.node.ref_doc_id for n in response.source_nodes} == {"second"}


async def test_a_synthesizer_by_itself(llm, retriever, seen):
    synthesizer = get_response_synthesizer(llm=llm, response_mode="compact_accumulate")
    await synthesizer.asynthesize(ASK, retriever.retrieve(ASK))
    seen.second_pass()
    await synthesizer.asynthesize(ASK, retriever.retrieve(ASK))
    seen.assert_injected([3])
