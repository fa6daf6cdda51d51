"""Read and write safetensors files, and the documents that describe them."""
