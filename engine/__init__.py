"""The engine: Qwen3.5 hybrids in GGUF files, with `forward_single` as the oracle."""
