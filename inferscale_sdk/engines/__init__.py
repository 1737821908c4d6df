"""Who turns tokens into text and KV."""
