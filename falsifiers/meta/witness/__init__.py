"""Tests of `falsifiers.witness`."""
