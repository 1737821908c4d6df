"""What every framework adapter needs: handles in a chat request become injected memory.

An adapter gives :class:`ChatBridge` the messages it is about to send, sends what it gets back with
its own client, and hands the response over. Nothing here knows a framework.
"""

from inferscale_sdk.bridge.chat import ChatBridge
from inferscale_sdk.bridge.ids import ID_NAMES, Ids, merge_ids, object_ids
from inferscale_sdk.bridge.merge import deep_merge
from inferscale_sdk.bridge.request import BridgedRequest, HandleCount, report_metadata
from inferscale_sdk.bridge.shared import shared_memory
from inferscale_sdk.bridge.sweep import TOOL_PLACEHOLDER, Swept, has_markers, sweep, sweep_text

__all__ = [
    "ID_NAMES",
    "TOOL_PLACEHOLDER",
    "BridgedRequest",
    "ChatBridge",
    "HandleCount",
    "Ids",
    "Swept",
    "deep_merge",
    "has_markers",
    "merge_ids",
    "object_ids",
    "report_metadata",
    "shared_memory",
    "sweep",
    "sweep_text",
]
