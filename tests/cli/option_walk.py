"""Every option of every command, by what it takes."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer

from inferscale_sdk.cli.app import app


def options(*wanted: type) -> Iterator[typing.Any]:
    """Every option of every command that takes one of the wanted types."""
    for path, command in leaves(app):
        hints = typing.get_type_hints(command, include_extras=True)
        for name in inspect.signature(command).parameters:
            kind, *marks = typing.get_args(hints[name]) or (hints[name],)
            if not any(isinstance(mark, typer.models.OptionInfo) for mark in marks):
                continue
            kinds = {kind, *typing.get_args(kind)}
            kinds |= {inner for outer in kinds for inner in typing.get_args(outer)}
            if kinds & set(wanted):
                option = f"--{name.replace('_', '-')}"
                yield pytest.param(path, option, id=" ".join((*path, option)))


def leaves(
    tree: typer.Typer, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], object]]:
    for command in tree.registered_commands:
        name = command.name or command.callback.__name__
        yield (*path, name), command.callback
    for group in tree.registered_groups:
        yield from leaves(group.typer_instance, (*path, group.name))


def refused(*args: str) -> str:
    """What a call that is wrong usage is told, as ``inferscale`` prints it."""
    with pytest.raises(typer.BadParameter) as caught:
        _tree().main(list(args), prog_name="inferscale", standalone_mode=False)
    assert caught.value.exit_code == 2
    return caught.value.format_message()


@cache
def _tree() -> Any:
    """Made once: hundreds of calls are looked at."""
    return typer.main.get_command(app)
