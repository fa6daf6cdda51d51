"""Faulty replies: texts, stops, endings and counts; each class has one fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.tokenizer import Detokenizer
from phases.p0_scheduler.increment import Ended, Request, Token
from phases.p2_engine_serve.request_stream import Piece, Reply, ReplyEnd
from phases.p2_engine_serve.stop_text import StreamedText


class MatchesEachTokenAlone(StreamedText):
    """A stop string is searched only in the newest token's text."""

    def _add_text(self, new: str) -> str:
        self._pending = ""
        shown = super()._add_text(new)
        return shown + ("" if self.stopped else self._pending)


class ShowsBeforeDeciding(StreamedText):
    """Text that may begin a stop string is sent at once."""

    def _add_text(self, new: str) -> str:
        before = self._pending
        text = super()._add_text(new)
        return (text + self._pending)[len(before):]


class LosesHeldText(StreamedText):
    """Text that is pending at the end is lost."""

    def finish(self) -> str:
        shown = super().finish()
        return shown[:len(shown) - len(self._detokenizer.finish())] if not self.stops else ""


class FirstListedStopCuts(StreamedText):
    """The stop that is listed first cuts, though another came earlier in the text."""

    def _find_stop(self, text: str) -> int | None:
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        return max(found) if found else None


class StopIsShown(StreamedText):
    """The stop string is part of the text."""

    def _find_stop(self, text: str) -> int | None:
        found = [at + len(stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        return min(found) if found else None


class RestartsAfterAMiss(StreamedText):
    """After a partial match that fails, its characters are not searched again."""

    def _pending_length(self, text: str) -> int:
        ats = [at for stop in self.stops
               if (at := text.find(stop[0])) >= 0 and stop.startswith(text[at:])]
        return len(text) - min(ats) if ats else 0


class DecodesTokenByToken(StreamedText):
    """Each token is decoded by itself."""

    def push(self, token: int) -> str:
        words = Detokenizer(self._detokenizer._tokenizer)
        return self._add_text(words.push(token) + words.finish())


class EndIsLost(StreamedText):
    """Bytes that remain at the end are dropped."""

    def finish(self) -> str:
        self._detokenizer = Detokenizer(self._detokenizer._tokenizer)
        return super().finish()


class LengthBeatsStop(Reply):
    """A stop string in the last token allowed is reported as length."""

    def _finish_reason(self, event: Ended) -> str:
        return "length" if event.reason == "length" else super()._finish_reason(event)


class EosIsLength(Reply):
    """A reply that ended at an end token is reported as length."""

    def _finish_reason(self, event: Ended) -> str:
        return "length" if event.reason == "eos" else super()._finish_reason(event)


class GoesOnBehindAStop(Reply):
    """The text ends at the stop string, but the request continues."""

    def cancel_request(self, reason: Any = "disconnect") -> None:
        if reason != "stop":
            super().cancel_request(reason)


class EndTokenIsNotCounted(Reply):
    """The end token is missing from the usage."""

    def _post_to_loop(self, piece: Piece | ReplyEnd) -> None:
        if isinstance(piece, ReplyEnd) and piece.reason == "stop" and not self.text.stops:
            piece = replace(piece, completion=piece.completion - 1)
        super()._post_to_loop(piece)


class LongestPromptCounts(Reply):
    """The usage reports the longest prompt seen so far, as with padding."""

    longest = 0

    def __init__(self, request: Request, *rest: Any) -> None:
        super().__init__(request, *rest)
        type(self).longest = max(self.longest, len(request.tokens))

    def _post_to_loop(self, piece: Piece | ReplyEnd) -> None:
        super()._post_to_loop(replace(piece, prompt=self.longest) if isinstance(piece, ReplyEnd)
                              else piece)


class CachedIsNotTold(Reply):
    """Reuse happens but is not reported."""

    def _post_to_loop(self, piece: Piece | ReplyEnd) -> None:
        super()._post_to_loop(replace(piece, cached=0) if isinstance(piece, ReplyEnd) else piece)


class PendingIsPoppedForAll(Reply):
    """When one request ends, the others lose the log-probs of their next token."""

    ended = 0
    seen = 0

    def _on_token(self, event: Token) -> None:
        self.lost, self.seen = self.seen < PendingIsPoppedForAll.ended, PendingIsPoppedForAll.ended
        super()._on_token(event)

    def _on_end(self, event: Ended) -> None:
        PendingIsPoppedForAll.ended += 1
        super()._on_end(event)

    def _post_to_loop(self, piece: Piece | ReplyEnd) -> None:
        if isinstance(piece, Piece) and self.lost:
            piece = replace(piece, emitted=None)
        super()._post_to_loop(piece)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lost, self.seen = False, PendingIsPoppedForAll.ended


class ErrorsAreSilent(Reply):
    """An engine error ends the request, but no error is sent to the client."""

    def _on_end(self, event: Ended) -> None:
        if event.reason != "error":
            super()._on_end(event)


class ErrorsLookFinished(Reply):
    """A reply that an error cut short is sent as complete."""

    def _post_to_loop(self, piece: Piece | ReplyEnd) -> None:
        if isinstance(piece, ReplyEnd) and piece.failed is not None:
            piece = replace(piece, failed=None, reason="stop")
        super()._post_to_loop(piece)


class DisconnectIsForgotten(Reply):
    """A request whose client disconnected is served to the end."""

    def cancel_request(self, reason: Any = "disconnect") -> None:
        if reason != "disconnect":
            super().cancel_request(reason)


class DisconnectEndsTheNewest(Reply):
    """A disconnect cancels the newest request, whichever client left."""

    newest: Sequence[str] = ()

    def send(self) -> None:
        super().send()
        DisconnectEndsTheNewest.newest = (self.request.id,)

    def cancel_request(self, reason: Any = "disconnect") -> None:
        if reason == "disconnect":
            self._engine_loop.cancel(DisconnectEndsTheNewest.newest[0], reason)
        else:
            super().cancel_request(reason)
