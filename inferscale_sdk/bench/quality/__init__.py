"""How well a model answers with injected memory, against the same facts as prompt text."""
