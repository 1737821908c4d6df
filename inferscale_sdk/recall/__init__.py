"""Which facts matter for a question."""
