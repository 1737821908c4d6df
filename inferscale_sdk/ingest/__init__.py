"""Encoding ahead of time: windows of facts, and the queue that sends them to the engine."""
