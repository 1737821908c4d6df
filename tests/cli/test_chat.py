"""``inferscale chat`` with lines piped into it."""

import json

import pytest

from inferscale_sdk.cli.chat_loop import ChatLoop, ChatSettings, JsonView
from inferscale_sdk.cli.session import open_memory
from inferscale_sdk.errors import EngineUnavailable


@pytest.fixture(autouse=True)
def _served(fake_engine):
    return fake_engine


def lines_of(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def texts_of(cli, user="me"):
    return [fact["text"] for fact in cli.json("memory", "list", "--user", user)]


def test_every_line_is_answered_and_both_sides_are_remembered(cli, fake_engine):
    result = cli("chat", stdin="Hello there\n\nI like tea\n")

    assert result.stdout.count("I read") == 2
    said = texts_of(cli)
    assert said[0] == "Hello there"
    assert said[1].startswith("I read")
    assert said[2] == "I like tea"
    assert fake_engine.closed


def test_what_was_said_in_one_run_reaches_the_prompt_of_the_next(cli, fake_engine):
    cli("chat", stdin="My cat is called Biscuit\n")
    cli("chat", stdin="What is my cat called?\n")

    assert "My cat is called Biscuit" in fake_engine.prompt_text(fake_engine.prompts[-1])


def test_recent_turns_are_in_the_conversation(cli, fake_engine):
    cli("chat", stdin="Look at this\nAnd now?\n")

    prompt = fake_engine.prompt_text(fake_engine.prompts[-1])
    _, _, conversation = prompt.partition("user\nLook at this")
    assert "assistant\nI read" in conversation
    assert "user\nAnd now?" in conversation


def test_quit_ends_it(cli, fake_engine):
    cli("chat", stdin="/quit\nnever said\n")

    assert fake_engine.prompts == []
    assert texts_of(cli) == []


def test_facts_and_forget(cli):
    cli("chat", stdin="I like tea\n")
    (first, _) = cli.json("memory", "list")

    shown = cli("chat", stdin=f"/facts\n/forget {first['id']}\n")

    assert "I like tea" in shown.stdout
    assert f"forgotten: {first['id']}" in shown.stderr
    assert "I like tea" not in texts_of(cli)
    cli("chat", stdin="/forget all\n")
    assert texts_of(cli) == []


@pytest.mark.parametrize("what", ["all", None], ids=["all", "by its id"])
def test_what_is_forgotten_is_not_in_the_next_prompts_either(fake_engine, tmp_path, what):
    with open_memory(tmp_path, fake_engine) as memory:
        loop = ChatLoop(memory, JsonView(), ChatSettings(user_id="me"))
        loop.handle("My cat is called Biscuit")
        (said, _) = memory.get_all(user_id="me")
        loop.handle(f"/forget {what or said.id}")
        loop.handle("And now?")

    assert "Biscuit" not in fake_engine.prompt_text(fake_engine.prompts[-1])


def test_a_fact_of_several_lines_is_listed_in_one(cli):
    (fact,) = cli.json("memory", "add", "eggs\nmilk", "--speaker", "Ann")

    for listed in (cli("chat", stdin="/facts\n"), cli("memory", "list")):
        assert listed.stdout == f"{fact['id']}  Ann: eggs\\nmilk\n"


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("/forget", "needs the id of a fact"),
        ("/forget fnothing", "fnothing"),
        ("/facts", "nothing is remembered yet"),
        ("/what", "/quit"),
    ],
)
def test_commands_that_have_nothing_to_do_say_so(cli, line, note):
    assert note in cli("chat", stdin=f"{line}\n").stderr


def test_users_are_apart(cli, fake_engine):
    cli("chat", "--user", "nora", stdin="My secret is blue\n")
    cli("chat", "--user", "jonas", stdin="What is the secret?\n")

    assert "blue" not in fake_engine.prompt_text(fake_engine.prompts[-1])
    assert "My secret is blue" not in texts_of(cli, "jonas")


def test_verbose_shows_what_was_recalled_and_what_became_of_it(cli):
    cli("chat", stdin="My cat is called Biscuit\n")

    result = cli("chat", "--verbose", stdin="What is my cat called?\n")

    assert "My cat is called Biscuit" in result.stderr
    assert "tokens injected" in result.stderr
    assert "Biscuit" not in result.stdout


def test_json_gives_one_object_a_line(cli):
    result = cli("chat", "--json", stdin="I like tea\n/facts\n/what\n")

    answer, facts, note = lines_of(result)
    assert answer["question"] == "I like tea"
    assert answer["answer"].startswith("I read")
    assert answer["report"]["status"] in ("none", "text")
    assert facts["facts"][0]["text"] == "I like tea"
    assert "/quit" in note["note"]


def test_a_question_that_is_not_answered_ends_nothing(cli, fake_engine, monkeypatch):
    """The server may be back with the next one."""
    stream = fake_engine.stream

    def fails_once(plan, sampling):
        monkeypatch.setattr(fake_engine, "stream", stream)
        raise EngineUnavailable("nobody answers at http://127.0.0.1:9; start a server")

    monkeypatch.setattr(fake_engine, "stream", fails_once)
    result = cli("chat", stdin="Hello there\nI like tea\n", code=1)
    assert "no answer: nobody answers at http://127.0.0.1:9" in result.stderr
    assert result.stdout.count("I read") == 1
    assert texts_of(cli)[0] == "I like tea"
