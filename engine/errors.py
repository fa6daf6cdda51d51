"""The one exception for input that is refused."""

from __future__ import annotations


class InputError(ValueError):
    """A file, an option or a call that is refused; the message is one clear sentence with the value."""
