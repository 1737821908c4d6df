"""The ``inferscale`` command.

One module per group of commands. Every module imports the rest of the SDK inside its functions,
so that ``inferscale --help`` answers at once.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line; exits with 0, 1 (it failed), 2 (wrong set-up or usage) or 130."""
    from inferscale_sdk.cli.app import app

    app(prog_name="inferscale")
