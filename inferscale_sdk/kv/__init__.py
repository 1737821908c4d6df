"""KV at rest: named dims, content address, file format."""
