"""Tests of `falsifiers.bisect`."""
