"""The exception for invalid input."""

from __future__ import annotations


class InputError(ValueError):
    """A file, option or call is invalid; the message is one sentence with the wrong value."""
