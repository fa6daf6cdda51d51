"""Tests of rules for all files of the repository."""
