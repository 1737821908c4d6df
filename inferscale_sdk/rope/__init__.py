"""Rotary position embeddings: pure functions."""
