"""Tests of `falsifiers.console`."""
