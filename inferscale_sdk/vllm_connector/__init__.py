"""The vLLM KV connector. The only part that imports vllm."""
