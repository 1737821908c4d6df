"""``python -m inferscale_sdk.cli``."""

from inferscale_sdk.cli import main

main()
