"""Adapters for frameworks, each a distribution of its own; see the folders below."""
