"""What every framework adapter needs: handles in a chat request become injected memory.

An adapter gives :class:`ChatBridge` the messages it is about to send, sends what it gets back with
its own client, and hands the response over. Nothing here knows a framework.
"""

from inferscale_sdk.bridge.chat import ChatBridge
from inferscale_sdk.bridge.merge import deep_merge
from inferscale_sdk.bridge.request import BridgedRequest, HandleCount, report_metadata
from inferscale_sdk.bridge.sweep import TOOL_PLACEHOLDER, Swept, has_markers, sweep, sweep_text

__all__ = [
    "TOOL_PLACEHOLDER",
    "BridgedRequest",
    "ChatBridge",
    "HandleCount",
    "Swept",
    "deep_merge",
    "has_markers",
    "report_metadata",
    "sweep",
    "sweep_text",
]
