"""Measurements of what memory costs and what it is worth."""
