"""Tests of `falsifiers.judging`."""
