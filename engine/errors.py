"""The one exception for input that is refused."""

from __future__ import annotations


class InputError(ValueError):
    """A file, option or call that is refused; the message is one sentence with the value."""
