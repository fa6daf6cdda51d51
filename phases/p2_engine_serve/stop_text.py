"""A reply's text, token by token: complete characters, cut before the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tokenizer import Detokenizer, Tokenizer


class StreamedText:
    """Turns tokens into text that can be sent at once.

    Text that may begin a stop string is pending until it is decided. The stop string that is
    complete first cuts the text, independent of token boundaries.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.stopped = False
        self.decoded_chars = 0
        """Characters decoded so far, sent or pending."""
        self._detokenizer = Detokenizer(tokenizer)
        self._pending = ""

    def push(self, token: int) -> str:
        """Add a token and return the text to send now."""
        return self._add_text(self._detokenizer.push(token))

    def finish(self) -> str:
        """End the text and return the pending part, or nothing if a stop string was found."""
        if self.stopped:
            return ""
        shown = self._add_text(self._detokenizer.finish())
        pending, self._pending = self._pending, ""
        return shown if self.stopped else shown + pending

    def _add_text(self, new: str) -> str:
        if self.stopped:
            return ""
        self.decoded_chars += len(new)
        text = self._pending + new
        cut = self._find_stop(text)
        self.stopped = cut is not None
        keep = len(text) - self._pending_length(text) if cut is None else cut
        self._pending = text[keep:] if cut is None else ""
        return text[:keep]

    def _find_stop(self, text: str) -> int | None:
        """Return where the stop that ends first begins, or None if there is none."""
        found = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _pending_length(self, text: str) -> int:
        """Return the length of the longest suffix of the text that begins a stop."""
        most = max((len(stop) for stop in self.stops), default=1) - 1
        for length in range(min(most, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self.stops):
                return length
        return 0
