"""Tests of `falsifiers.instruments`."""
