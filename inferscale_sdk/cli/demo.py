"""``inferscale demo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferscale_sdk.cli.listening import Progress
from inferscale_sdk.cli.options import Json
from inferscale_sdk.cli.output import exit_unless_proved, out, print_json
from inferscale_sdk.cli.values import whole

if TYPE_CHECKING:
    from rich.table import Table

    from inferscale_sdk.demo.report import Answer, DemoReport

__all__ = ["demo"]


def demo(
    rounds: Annotated[
        int, typer.Option(help="Timed repetitions of every request.", **whole(1, 50))
    ] = 2,
    json: Json = False,
) -> None:
    """Ask a small real model about a sample life: memory as prompt text against memory as KV.

    Starts vLLM, remembers and encodes about 150 facts once, then asks eight questions with 5 and
    50 recalled facts three ways, shuffled. Exits with 0 only if vLLM's own counter of tokens it
    did not have to compute grew by exactly the injected tokens.
    """
    from inferscale_sdk.demo.run import DemoOptions, run_demo

    report = run_demo(Progress(), DemoOptions(rounds=rounds))
    if json:
        print_json(report.as_dict())
    else:
        _print(report)
    exit_unless_proved(
        report.proved, injected=report.injected_tokens, counted=report.external_hits_delta
    )


def _print(report: DemoReport) -> None:
    console = out()
    console.print(
        f"{report.model} on vLLM, {report.facts} facts remembered, "
        f"{report.encoded} of them encoded in this run\n"
    )
    console.print(_timings(report))
    for k in report.ks:
        console.print(
            f"k={k}: {report.speedup(k):.2f} times sooner than memory as prompt text, "
            f"{report.over_ceiling(k):.2f} of the ceiling's time"
        )
    for answers in _by_question(report.answers):
        _print_answers(answers)
    if report.proved:
        console.print(
            f"\nProved: {report.injected_tokens} prompt tokens were injected, and vLLM's own "
            "counter\n(vllm:external_prefix_cache_hits) grew by exactly as many."
        )
    total = sum(report.seconds.values())
    parts = ", ".join(f"{stage} {value:.1f}" for stage, value in report.seconds.items())
    console.print(f"{total:.0f} s in all ({parts})")


def _timings(report: DemoReport) -> Table:
    from rich import box
    from rich.table import Table

    title = "Milliseconds to the first token over HTTP, and prompt tokens per request"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="")
    table.add_column("k", justify="right")
    table.add_column("memory")
    for column in ("median", "p10-p90", "memory", "prefilled", "injected", "cached"):
        table.add_column(column, justify="right")
    for cell in report.cells:
        ttft = cell.ttft_ms
        table.add_row(
            str(cell.k),
            _ARM_NAMES[cell.arm.value],
            f"{ttft.median:.0f}",
            f"{ttft.p10:.0f}-{ttft.p90:.0f}",
            f"{cell.memory_tokens:.0f}",
            f"{cell.prefilled_tokens:.0f}",
            f"{cell.injected_tokens:.0f}",
            f"{cell.cached_tokens:.0f}",
        )
    return table


_ARM_NAMES = {"prompt": "as text", "inject": "injected", "cached": "ceiling"}


def _by_question(answers: tuple[Answer, ...]) -> list[list[Answer]]:
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.question, []).append(answer)
    return list(groups.values())


def _print_answers(answers: list[Answer]) -> None:
    console = out()
    console.print(f"\n{answers[0].question} ({answers[0].expected})", markup=False, style="bold")
    for answer in answers:
        for arm, text in answer.texts.items():
            line = f"  k={answer.k:<3} {_ARM_NAMES[arm.value]:<9} {text}"
            console.print(line, markup=False, overflow="ellipsis", no_wrap=True)
