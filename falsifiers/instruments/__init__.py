"""Measuring instruments: what a kernel loads, where it loads from, and what it must equal."""
