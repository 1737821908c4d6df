"""Shipped test doubles and conformance suites."""
