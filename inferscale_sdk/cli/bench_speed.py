"""``inferscale bench ttft`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inferscale_sdk.cli.listening import Progress
from inferscale_sdk.cli.options import BaseUrl, Json, Model, Plots, Seed
from inferscale_sdk.cli.output import err, exit_unless_proved, out, print_json
from inferscale_sdk.cli.values import COUNT, folder_to_make, integers, remote_address, whole

__all__ = [
    "Data",
    "Work",
    "compare",
    "parse_arms",
    "show",
    "ttft",
    "work_folder",
]

Data = Annotated[
    Path | None, typer.Option(help="JSON with lists of facts.", show_default="invented facts")
]
Work = Annotated[
    Path | None,
    typer.Option(
        help="Facts, KV and logs; a second run encodes nothing.",
        show_default="bench/speed under INFERSCALE_HOME",
        parser=folder_to_make,
        metavar="FOLDER",
    ),
]

DEFAULT_ARMS = "prompt,repeated,inject,disk,cached"


def ttft(
    k: Annotated[
        str, typer.Option(help="Numbers of facts, with commas between.")
    ] = "0,5,10,20,50,100,200",
    arm: Annotated[
        str,
        typer.Option(
            help="What to compare, with commas between: prompt, repeated (prefix caching, the "
            "same facts again), inject (host memory), live (the same but for the best fact, the "
            "default), device, disk, remote, cached (the ceiling), mem0."
        ),
    ] = DEFAULT_ARMS,
    requests: Annotated[
        int, typer.Option(help="Timed, of each arm at each k.", **whole(1, COUNT))
    ] = 20,
    questions: Annotated[int, typer.Option(help="Different ones.", **whole(1, 20))] = 10,
    answer_tokens: Annotated[
        int, typer.Option(help="Length of the answers.", **whole(1, COUNT))
    ] = 8,
    facts: Annotated[
        int, typer.Option(help="Facts of the person asked about.", **whole(1, COUNT))
    ] = 300,
    data: Data = None,
    model: Model = None,
    base_url: BaseUrl = None,
    remote_url: Annotated[
        str | None,
        typer.Option(
            help="The remote tier.", show_default="a folder", parser=remote_address, metavar="URL"
        ),
    ] = None,
    kv_cache_gib: Annotated[
        int, typer.Option(help="vLLM's KV cache on a CPU.", **whole(1, COUNT))
    ] = 3,
    work: Work = None,
    plots: Plots = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Time to first token against the number of facts: text, injection, and the ceiling.

    Starts vLLM, remembers and encodes facts once, then asks the same questions in every arm, in
    turns. Exits with 0 only if vLLM's own counter of tokens it did not have to compute grew by
    exactly the injected tokens.
    """
    from inferscale_sdk.bench.speed.bed import BedOptions
    from inferscale_sdk.bench.speed.session import SessionOptions, run_ttft
    from inferscale_sdk.bench.speed.ttft import TTFTOptions

    arms = parse_arms(arm)
    ks = integers(k, "--k", 0, COUNT)
    wanted = TTFTOptions(
        ks=ks,
        arms=arms,
        requests=requests,
        questions=questions,
        answer_tokens=answer_tokens,
        seed=seed,
    )
    bed = BedOptions(
        folder=work_folder(work),
        facts=max(facts, *ks),
        base_url=base_url,
        model=model,
        arms=arms,
        remote_url=remote_url,
        kv_cache_gib=kv_cache_gib,
        max_k=max(1, *ks),
    )
    session = SessionOptions(bed=bed, data=data, seed=seed)
    result = run_ttft(session, wanted, Progress())
    show(result, json=json, plots=plots)
    exit_unless_proved(
        result["proved"],
        injected=result["injected_tokens"],
        counted=result["external_hits_delta"],
    )


def compare(
    first: Annotated[Path, typer.Argument(help="A result, as --json printed it.")],
    second: Annotated[Path, typer.Argument(help="Another of the same command.")],
    json: Json = False,
) -> None:
    """Put two results of one command side by side; says which medians lie clearly apart."""
    from inferscale_sdk.bench.speed.compare import compare_results, compare_table, load_result

    comparison = compare_results(load_result(first), load_result(second))
    if json:
        print_json(comparison)
        return
    for name, (before, after) in comparison["environment_changed"].items():
        err().print(f"other {name}: {before} and {after}", markup=False)
    out().print(compare_table(comparison), markup=False)


def parse_arms(text: str) -> tuple[Any, ...]:
    """Arms from a list with commas.

    Raises:
        ConfigurationError: There is no such arm.
    """
    from inferscale_sdk.bench.speed.arms import Arm
    from inferscale_sdk.errors import ConfigurationError

    known = [arm.value for arm in Arm]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"there is no arm {name!r}; there are: {', '.join(known)}")
    return tuple(Arm(name) for name in dict.fromkeys(names))


def work_folder(work: Path | None) -> Path:
    """Where a measurement keeps what it needs again."""
    from inferscale_sdk.config import settings

    return work or settings().home / "bench" / "speed"


def show(result: dict[str, Any], *, json: bool, plots: Path | None) -> None:
    """Print a result, and draw it."""
    if plots is not None:
        from inferscale_sdk.bench.speed.plots import write_plots

        for path in write_plots(result, plots):
            err().print(f"written: {path}", markup=False)
    if json:
        print_json(result)
        return
    from inferscale_sdk.bench.speed.tables import tables_of

    for title, table in tables_of(result):
        out().print(f"\n{title}\n\n{table}", markup=False)
