"""Tests of `falsifiers.vectors`."""
