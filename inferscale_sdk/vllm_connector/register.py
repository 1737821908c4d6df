"""The ``vllm.general_plugins`` entry point: makes the connector known by name."""

from __future__ import annotations

__all__ = ["register"]

NAME = "InferScaleConnector"


def register() -> None:
    """Register the connector with vLLM's factory; called by vLLM in each of its processes."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(
            NAME, "inferscale_sdk.vllm_connector.connector", "InferScaleConnector"
        )
