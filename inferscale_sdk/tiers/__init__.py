"""Where a segment's KV lies."""
