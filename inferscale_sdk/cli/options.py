"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from inferscale_sdk.cli.values import (
    MODEL_TO_LOAD,
    OWNER_ID,
    existing_memory,
    folder_to_make,
    http_address,
    whole,
)

__all__ = [
    "DEFAULT_USER",
    "Agent",
    "App",
    "BaseUrl",
    "EngineChoice",
    "EngineKind",
    "Json",
    "Model",
    "Plots",
    "Run",
    "Seed",
    "Store",
    "StoreThere",
    "User",
]

DEFAULT_USER = "me"


class EngineChoice(StrEnum):
    """Which engine to start when no running server is meant."""

    VLLM = "vllm"
    TRANSFORMERS = "transformers"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
User = Annotated[str, typer.Option("--user", "-u", help="Whose memory.", **OWNER_ID)]
Agent = Annotated[
    str | None, typer.Option("--agent", help="Only what this agent was told.", **OWNER_ID)
]
Run = Annotated[str | None, typer.Option("--run", help="Only this session or thread.", **OWNER_ID)]
App = Annotated[
    str | None, typer.Option("--app", help="The application, if several share a store.", **OWNER_ID)
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="Folder of the memory; made if it is not there.",
        show_default="under INFERSCALE_HOME",
        parser=folder_to_make,
        metavar="FOLDER",
    ),
]
StoreThere = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="Folder of a memory that is there.",
        show_default="under INFERSCALE_HOME",
        parser=existing_memory,
        metavar="FOLDER",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        help="A running server.",
        show_default="INFERSCALE_BASE_URL, if set",
        parser=http_address,
        metavar="URL",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="A model's folder or name.", show_default="bundled SmolLM2", **MODEL_TO_LOAD),
]
Seed = Annotated[
    int, typer.Option(help="Of everything drawn at random.", **whole(0, 4_294_967_295))
]
Plots = Annotated[
    Path | None,
    typer.Option(
        help="Write plots (PNG and HTML) into this folder.",
        parser=folder_to_make,
        metavar="FOLDER",
    ),
]
EngineKind = Annotated[
    EngineChoice,
    typer.Option(
        "--engine",
        help="What computes: 'vllm', a server, or 'transformers', the model in this process.",
    ),
]
