"""Tests of `falsifiers.mutation`."""
