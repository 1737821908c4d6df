"""One line in, one answer out, both remembered."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from inferscale_sdk.cli.facts import fact_dict
from inferscale_sdk.cli.output import err, one_line, out, print_json_line, visible
from inferscale_sdk.cli.streams import undecoded
from inferscale_sdk.errors import ContextOverflow, EngineError, NotFoundError
from inferscale_sdk.types import Message

if TYPE_CHECKING:
    from inferscale_sdk.engines.base import Sampling
    from inferscale_sdk.memory import Memory
    from inferscale_sdk.types import Fact, InjectionReport, ScoredFact

__all__ = ["ChatLoop", "ChatSettings", "JsonView", "TextView", "View"]

HELP = "/facts  /forget ID  /forget all  /quit"

# Earlier turns are recalled as facts; these keep "it" and "that" understandable.
RECENT_TURNS = 6


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Whose chat it is and how it answers."""

    user_id: str
    top_k: int = 20
    max_tokens: int = 256

    def sampling(self) -> Sampling:
        """Greedy, bounded."""
        from inferscale_sdk.engines.base import Sampling

        return Sampling(max_tokens=self.max_tokens)


class View(Protocol):
    """Shows what happens in a chat."""

    def recalled(self, facts: Sequence[ScoredFact]) -> None:
        """Before an answer: what was recalled, best first."""

    def piece(self, text: str) -> None:
        """A piece of the answer."""

    def done(self, question: str, answer: str, report: InjectionReport) -> None:
        """The answer is complete."""

    def facts(self, facts: Sequence[Fact]) -> None:
        """Everything that is remembered."""

    def note(self, text: str) -> None:
        """Something to know that is no answer."""


class TextView:
    """For people: the answer as it comes, the rest dimmed and only when asked for."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose

    def recalled(self, facts: Sequence[ScoredFact]) -> None:
        """List the facts, if verbose."""
        if self._verbose:
            for scored in facts:
                self._dim(f"  {scored.score:.3f}  {one_line(scored.fact.text)}")

    def piece(self, text: str) -> None:
        """Write it at once."""
        sys.stdout.write(visible(text))
        sys.stdout.flush()

    def done(self, question: str, answer: str, report: InjectionReport) -> None:
        """End the line; say what became of the memory, if verbose."""
        self.piece("\n")
        if self._verbose:
            self._dim("  " + describe(report))

    def facts(self, facts: Sequence[Fact]) -> None:
        """One line each."""
        for fact in facts:
            line = one_line(f"{fact.speaker or ''}: {fact.text}")
            out().print(f"{fact.id}  {line}", markup=False)
        if not facts:
            self.note("nothing is remembered yet")

    def note(self, text: str) -> None:
        """To stderr, so that piped answers stay clean."""
        err().print(visible(text), style="dim", markup=False)

    def _dim(self, text: str) -> None:
        err().print(text, style="dim", markup=False)


class JsonView:
    """For programs: one JSON object per answer or listing, each on a line of its own."""

    def __init__(self) -> None:
        self._recalled: list[dict[str, object]] = []

    def recalled(self, facts: Sequence[ScoredFact]) -> None:
        """Kept for the answer's object."""
        self._recalled = [
            {"id": scored.fact.id, "text": scored.fact.text, "score": scored.score}
            for scored in facts
        ]

    def piece(self, text: str) -> None:
        """Nothing: the answer comes whole."""

    def done(self, question: str, answer: str, report: InjectionReport) -> None:
        """The whole answer."""
        from dataclasses import asdict

        print_json_line(
            {
                "question": question,
                "answer": answer,
                "recalled": self._recalled,
                "report": asdict(report),
            }
        )

    def facts(self, facts: Sequence[Fact]) -> None:
        """All of them in one object."""
        print_json_line({"facts": [fact_dict(fact) for fact in facts]})

    def note(self, text: str) -> None:
        """An object too, so that every line of input has a line of output."""
        print_json_line({"note": text})


def describe(report: InjectionReport) -> str:
    """A report in one line."""
    ttft = "" if report.ttft_ms is None else f", first token after {report.ttft_ms:.0f} ms"
    why = f" ({report.reason})" if report.reason else ""
    return (
        f"memory {report.status.value}{why}: {report.injected_tokens} tokens injected, "
        f"{report.cached_tokens} cached, {report.prefilled_tokens} prefilled{ttft}"
    )


class ChatLoop:
    """Answers lines and remembers both sides.

    Args:
        memory: What is remembered.
        view: Shows it.
        settings: Whose chat it is.
    """

    def __init__(self, memory: Memory, view: View, settings: ChatSettings) -> None:
        self._memory = memory
        self._view = view
        self._settings = settings
        self._recent: deque[Message] = deque(maxlen=RECENT_TURNS)
        self.n_unanswered = 0

    def handle(self, line: str) -> bool:
        """Answer a line or follow a command; ``False`` ends the chat.

        A line that is no text, or a question that the engine does not answer, is counted in
        :attr:`n_unanswered`, and neither it nor a part of an answer is remembered: it may be asked
        again.
        """
        line = line.strip()
        if undecoded(line):
            self.n_unanswered += 1
            self._view.note(f"no answer: a line is not in the encoding of stdin: {line!a:.80}")
            return True
        if line in ("/quit", "/exit"):
            return False
        if line.startswith("/"):
            self._command(line)
        elif line:
            try:
                self._answer(line)
            except (EngineError, ContextOverflow) as error:
                self.n_unanswered += 1
                self._view.note(f"no answer: {error}")
        return True

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/facts":
            self._view.facts(self._memory.get_all(user_id=self._settings.user_id))
        elif name == "/forget":
            self._forget(argument.strip())
        else:
            self._view.note(HELP)

    def _forget(self, what: str) -> None:
        user_id = self._settings.user_id
        if not what:
            self._view.note("/forget needs the id of a fact (see /facts), or the word all")
            return
        try:
            if what == "all":
                self._memory.delete_all(user_id=user_id)
            else:
                self._memory.delete(what, user_id=user_id)
        except NotFoundError as error:
            self._view.note(str(error))
        else:
            # Answers may repeat what is forgotten, so that no turn can be told to be free of it.
            self._recent.clear()
            self._view.note(f"forgotten: {what}")

    def _answer(self, question: str) -> None:
        settings = self._settings
        turn = Message("user", question)
        plan = self._memory.prepare(
            [*self._recent, turn],
            user_id=settings.user_id,
            top_k=settings.top_k,
            max_tokens=settings.max_tokens,
        )
        self._view.recalled(plan.facts)
        pieces: list[str] = []
        for chunk in self._memory.complete_stream(plan, sampling=settings.sampling()):
            pieces.append(chunk.text)
            self._view.piece(chunk.text)
            if chunk.completion is not None:
                self._view.done(question, "".join(pieces), chunk.completion.report)
        answer = Message("assistant", "".join(pieces).strip())
        self._memory.add([turn, answer], user_id=settings.user_id)
        self._recent.extend((turn, answer))
