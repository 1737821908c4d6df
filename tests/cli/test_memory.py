"""``inferscale memory`` against the embedded store."""

import json
import stat

import pytest


def ids(facts):
    return [fact["id"] for fact in facts]


def test_what_is_added_is_listed_in_order(cli):
    added = cli.json("memory", "add", "I like tea", "I live in Porto", "--user", "nora")

    listed = cli.json("memory", "list", "--user", "nora")

    assert [fact["text"] for fact in listed] == ["I like tea", "I live in Porto"]
    assert ids(listed) == ids(added)
    assert "I like tea" in cli("memory", "list", "--user", "nora").stdout


def test_lines_are_read_from_stdin(cli):
    cli("memory", "add", "-", stdin="one\n\n two \n")

    assert [fact["text"] for fact in cli.json("memory", "list")] == ["one", "two"]


def test_speaker_and_time_are_kept(cli):
    cli("memory", "add", "It rains", "--speaker", "Ilse", "--when", "2025-03-01")

    (fact,) = cli.json("memory", "list")

    assert (fact["speaker"], fact["event_time"]) == ("Ilse", "2025-03-01T00:00:00+00:00")
    assert "2025-03-01 Ilse: It rains" in cli("memory", "list").stdout


def test_the_source_of_a_fact_is_shown(cli):
    from inferscale_sdk.cli.session import open_memory
    from inferscale_sdk.types import NewFact

    with open_memory(None) as memory:
        memory.add_facts([NewFact("Transfers are fine", source="mail from Eve")], user_id="me")
    for command in (["list"], ["search", "transfers"]):
        assert "(from mail from Eve)" in cli("memory", *command).stdout
        assert cli.json("memory", *command)[0]["source"] == "mail from Eve"


def test_nobody_sees_anothers_facts(cli):
    (fact,) = cli.json("memory", "add", "secret", "--user", "nora")

    assert cli.json("memory", "list", "--user", "jonas") == []
    assert "NotFoundError" in cli("memory", "forget", fact["id"], "-u", "jonas", code=1).stderr
    assert "NotFoundError" in cli("memory", "history", fact["id"], "-u", "jonas", code=1).stderr
    assert len(cli.json("memory", "list", "--user", "nora")) == 1


def test_a_forgotten_fact_is_gone_but_has_a_history(cli):
    (fact,) = cli.json("memory", "add", "I like tea")

    assert cli.json("memory", "forget", fact["id"]) == {"forgotten": 1}

    assert cli.json("memory", "list") == []
    kinds = [event["kind"] for event in cli.json("memory", "history", fact["id"])]
    assert kinds == ["add", "delete"]
    assert "I like tea" in cli("memory", "history", fact["id"]).stdout


def test_a_hard_forget_erases_the_text_everywhere(cli):
    (fact,) = cli.json("memory", "add", "I like tea")

    cli("memory", "forget", fact["id"], "--hard")

    assert "I like tea" not in cli("memory", "history", fact["id"]).output


def test_forgetting_everything_asks_first(cli, monkeypatch):
    cli("memory", "add", "one", "two")
    monkeypatch.setattr("inferscale_sdk.cli.forget.interactive", lambda: True)

    for option in ((), ("--json",)):
        asked = cli("memory", "forget", "--all", *option, stdin="n\n", code=1)
        assert "Forget all 2 facts of me?" in asked.stderr
        assert "Forget" not in asked.stdout
    assert len(cli.json("memory", "list")) == 2
    assert cli("memory", "forget", "--all", "--yes").stdout == "forgotten: 2\n"
    assert cli.json("memory", "list") == []


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_where_nobody_can_be_asked_everything_needs_yes(cli, option):
    cli("memory", "add", "one", "two")

    assert "--yes" in cli("memory", "forget", "--all", *option, stdin="y\n", code=2).stderr
    assert len(cli.json("memory", "list")) == 2
    assert cli.json("memory", "forget", "--all", "--yes") == {"forgotten": 2}


def test_what_was_forgotten_before_an_error_is_told(cli):
    one, two = cli.json("memory", "add", "one", "two")

    told = cli("memory", "forget", one["id"], "fnothing", two["id"], code=1)
    assert told.stdout == "forgotten: 1\n" and "fnothing" in told.stderr
    assert cli.json("memory", "forget", two["id"], "fnothing", code=1) == {"forgotten": 1}


def test_a_user_that_must_be_named_is_a_wrong_call(cli):
    assert (
        "it is empty; leave it out or give an id" in cli("memory", "list", "-u", "", code=2).stderr
    )


def test_facts_do_not_command_the_terminal(cli):
    text = "tea \x1b[31mred\x1b]0;title\x07 \x9b2J \u202eback\r"
    (fact,) = cli.json("memory", "add", f"{text}.", "--speaker", "\x1b[2J")

    for command in (["list"], ["search", "tea"], ["history", fact["id"]]):
        shown = cli("memory", *command).stdout
        assert not {"\x1b", "\x07", "\x9b", "\r", "\u202e"} & set(shown)
        assert "\\x1b[31mred" in shown and "\\u202eback\\r." in shown
    assert "\x1b[31mred" in cli.json("memory", "list")[0]["text"], "JSON is data"


def test_forget_needs_facts_or_all_and_not_both(cli):
    cli("memory", "forget", code=2)
    cli("memory", "forget", "fabc", "--all", code=2)


def test_export_writes_one_object_a_line_into_a_private_new_file(cli, tmp_path):
    cli("memory", "add", "one", "zwölf")
    file = tmp_path / "facts.jsonl"

    cli("memory", "export", "-o", str(file))

    lines = file.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one", "zwölf"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert cli("memory", "export").stdout.splitlines() == lines
    assert [fact["text"] for fact in cli.json("memory", "export")] == ["one", "zwölf"]


def test_export_leaves_an_existing_file_alone(cli, tmp_path):
    file = tmp_path / "facts.jsonl"
    file.write_text("mine")

    assert "cannot write a new file" in cli("memory", "export", "-o", str(file), code=2).stderr
    assert file.read_text() == "mine"


def test_stats_and_paging(cli, home):
    cli("memory", "add", *(f"fact {i}" for i in range(5)))

    about = cli.json("memory", "stats")
    page = cli.json("memory", "list", "--limit", "2", "--offset", "1")

    assert (about["facts"], about["folder"]) == (5, str(home / "memory"))
    assert [fact["text"] for fact in page] == ["fact 1", "fact 2"]
    assert "facts" in cli("memory", "stats").stdout


def test_another_folder_is_another_memory(cli, tmp_path):
    cli("memory", "add", "here", "--store", str(tmp_path / "other"))

    assert cli.json("memory", "list") == []
    assert len(cli.json("memory", "list", "--store", str(tmp_path / "other"))) == 1


def test_search_finds_the_best_first(cli):
    cli("memory", "add", "I am allergic to walnuts", "My cat is called Biscuit", "I live in Porto")

    found = cli.json("memory", "search", "What is the cat's name?", "-k", "2")

    assert found[0]["text"] == "My cat is called Biscuit"
    assert len(found) == 2
    assert found[0]["score"] >= found[1]["score"]
    assert "Biscuit" in cli("memory", "search", "cat").stdout
