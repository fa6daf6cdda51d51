"""Read and write tensors as safetensors files that may come from anyone."""
