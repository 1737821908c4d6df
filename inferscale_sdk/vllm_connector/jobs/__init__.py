"""Scheduler half: one job per request that carries an operation, one module per kind."""
