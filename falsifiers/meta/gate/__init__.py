"""Tests of `falsifiers.gate`."""
