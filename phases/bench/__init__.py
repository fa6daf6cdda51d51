"""Benchmarks on a device: every timing, with the memory floor of the same run."""
