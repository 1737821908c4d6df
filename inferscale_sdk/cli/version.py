"""``inferscale version``."""

from __future__ import annotations

from inferscale_sdk.cli.options import Json
from inferscale_sdk.cli.output import out, print_json

__all__ = ["version"]


def version(json: Json = False) -> None:
    """Print the SDK's version, and the protocol and file format it speaks."""
    import platform

    from inferscale_sdk._version import __version__
    from inferscale_sdk.kv.key import FORMAT_VERSION
    from inferscale_sdk.protocol import PROTOCOL_VERSION

    about = {
        "inferscale_sdk": __version__,
        "protocol": PROTOCOL_VERSION,
        "key_format": FORMAT_VERSION,
        "python": platform.python_version(),
    }
    if json:
        print_json(about)
    else:
        out().print(f"inferscale-sdk {__version__} (protocol {PROTOCOL_VERSION})")
