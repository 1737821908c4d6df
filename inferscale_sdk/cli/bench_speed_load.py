"""``inferscale bench throughput``, ``ingest``, ``scale`` and ``write``."""

from __future__ import annotations

from typing import Annotated

import typer

from inferscale_sdk.cli.bench_speed import (
    Data,
    Work,
    parse_arms,
    show,
    work_folder,
)
from inferscale_sdk.cli.listening import Progress
from inferscale_sdk.cli.options import BaseUrl, Json, Model, Plots, Seed
from inferscale_sdk.cli.output import exit_unless_proved
from inferscale_sdk.cli.values import COUNT, LONG_COUNT, integers, number, whole

__all__ = ["ingest", "scale", "throughput", "write"]


def throughput(
    users: Annotated[str, typer.Option(help="Concurrent users, with commas between.")] = "1,10,100",
    requests: Annotated[int, typer.Option(help="Of each user.", **whole(1, COUNT))] = 2,
    k: Annotated[int, typer.Option(help="Facts in each prompt.", **whole(1, COUNT))] = 50,
    output_tokens: Annotated[
        str, typer.Option(help="Lengths of the answers, with commas between.")
    ] = "50,8,1",
    arm: Annotated[str, typer.Option(help="Of prompt, inject, cached.")] = "prompt,inject,cached",
    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Poisson arrivals a second; may be repeated.",
            show_default="none",
            **number(0.001, COUNT),
        ),
    ] = None,
    arrivals: Annotated[
        int, typer.Option(help="Requests of each Poisson load.", **whole(1, COUNT))
    ] = 60,
    objective_ms: Annotated[
        float,
        typer.Option(help="Time to first token that counts as good.", **number(0.001, LONG_COUNT)),
    ] = 500.0,
    facts: Annotated[
        int, typer.Option(help="Facts of the person asked about.", **whole(1, COUNT))
    ] = 300,
    data: Data = None,
    model: Model = None,
    base_url: BaseUrl = None,
    kv_cache_gib: Annotated[
        int, typer.Option(help="vLLM's KV cache on a CPU.", **whole(1, COUNT))
    ] = 6,
    work: Work = None,
    plots: Plots = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Requests a second with many users at once: text, injection, and the ceiling.

    Every user has a salt of their own. With a rate, requests arrive at random, and goodput counts
    those whose first token came within the objective.
    """
    from inferscale_sdk.bench.speed.bed import BedOptions
    from inferscale_sdk.bench.speed.session import SessionOptions, run_throughput
    from inferscale_sdk.bench.speed.throughput import ThroughputOptions

    wanted = ThroughputOptions(
        users=integers(users, "--users", 1, 100_000) if users else (),
        requests=requests,
        k=k,
        output_tokens=integers(output_tokens, "--output-tokens", 1, COUNT),
        arms=parse_arms(arm),
        rates=tuple(rate or ()),
        arrivals=arrivals,
        objective_ms=objective_ms,
        seed=seed,
    )
    bed = BedOptions(
        folder=work_folder(work),
        facts=max(facts, k),
        base_url=base_url,
        model=model,
        kv_cache_gib=kv_cache_gib,
        max_k=k,
    )
    session = SessionOptions(bed=bed, data=data, seed=seed)
    result = run_throughput(session, wanted, Progress())
    show(result, json=json, plots=plots)
    exit_unless_proved(
        result["proved"],
        injected=result["injected_tokens"],
        counted=result["external_hits_delta"],
    )


def ingest(
    window: Annotated[
        int, typer.Option(help="Facts each is encoded behind.", **whole(1, COUNT))
    ] = 20,
    facts: Annotated[
        int, typer.Option(help="Of one measurement, whole windows at once.", **whole(1, COUNT))
    ] = 100,
    single_facts: Annotated[
        int, typer.Option(help="Of one measurement, a request for each.", **whole(1, COUNT))
    ] = 30,
    rounds: Annotated[int, typer.Option(help="Measurements of each way.", **whole(1, COUNT))] = 3,
    data: Data = None,
    model: Model = None,
    base_url: BaseUrl = None,
    plots: Plots = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Facts a second to durable KV: whole windows in one request against one request a fact."""
    from inferscale_sdk.bench.speed.bed import BedOptions
    from inferscale_sdk.bench.speed.ingest import IngestOptions
    from inferscale_sdk.bench.speed.session import SessionOptions, run_ingest

    wanted = IngestOptions(window=window, facts=facts, single_facts=single_facts, rounds=rounds)
    bed = BedOptions(folder=work_folder(None), base_url=base_url, model=model, kv_cache_gib=1)
    session = SessionOptions(bed=bed, data=data, seed=seed)
    result = run_ingest(session, wanted, Progress())
    show(result, json=json, plots=plots)


def scale(
    sizes: Annotated[
        str, typer.Option(help="Facts in the store, with commas between, ascending.")
    ] = "1000,10000,100000",
    in_namespace: Annotated[
        int, typer.Option(help="Facts of the person asked about.", **whole(1, LONG_COUNT))
    ] = 10_000,
    per_namespace: Annotated[
        int, typer.Option(help="Of each other person.", **whole(1, LONG_COUNT))
    ] = 1_000,
    k: Annotated[int, typer.Option(help="Facts recalled.", **whole(1, COUNT))] = 50,
    requests: Annotated[
        int, typer.Option(help="Timed questions at each size.", **whole(1, COUNT))
    ] = 40,
    data: Data = None,
    model: Model = None,
    plots: Plots = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Recall and planning while the store grows; no server takes part."""
    from inferscale_sdk.bench.speed.bed import BedOptions
    from inferscale_sdk.bench.speed.scale import ScaleOptions
    from inferscale_sdk.bench.speed.session import SessionOptions, run_scale

    wanted = ScaleOptions(
        sizes=integers(sizes, "--sizes", 2, LONG_COUNT),
        in_namespace=in_namespace,
        per_namespace=per_namespace,
        k=k,
        requests=requests,
    )
    bed = BedOptions(folder=work_folder(None), model=model)
    session = SessionOptions(bed=bed, data=data, seed=seed)
    result = run_scale(session, wanted, Progress())
    show(result, json=json, plots=plots)


def write(
    k: Annotated[str, typer.Option(help="Numbers of facts, with commas between.")] = "5,10,20,50",
    tokens: Annotated[int, typer.Option(help="Of each fact.", **whole(1, 100_000))] = 28,
    rounds: Annotated[
        int, typer.Option(help="Timed, of each way at each k.", **whole(1, COUNT))
    ] = 30,
    layers: Annotated[int, typer.Option(help="Attention layers.", **whole(1, 1024))] = 32,
    kv_heads: Annotated[
        int, typer.Option(help="Key/value heads of a layer.", **whole(1, 1024))
    ] = 8,
    head_dim: Annotated[int, typer.Option(help="Channels of a head.", **whole(2, 4096))] = 128,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
    plots: Plots = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Injected segments into a paged cache, against a plain copy of as many bytes.

    No model runs: random numbers in a model's shape, that of Llama-3.1-8B unless told otherwise.
    """
    from inferscale_sdk.bench.speed.session import run_write
    from inferscale_sdk.bench.speed.writing import WriteOptions

    wanted = WriteOptions(
        ks=integers(k, "--k", 1, 10_000),
        tokens=tokens,
        rounds=rounds,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        device=device,
        dtype=dtype,
        seed=seed,
    )
    show(run_write(wanted, Progress()), json=json, plots=plots)
