"""Wrong replies, each with one fault: texts, stops, endings, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.tokenizer import Detokenizer
from phases.p0_scheduler.increment import Ended, Request, Token
from phases.p2_engine_serve.request_stream import Done, Piece, Reply
from phases.p2_engine_serve.stop_text import Text


class MatchesEachTokenAlone(Text):
    """A stop string is looked for in the newest token's text only."""

    def _show(self, new: str) -> str:
        self._held = ""
        shown = super()._show(new)
        return shown + ("" if self.stopped else self._held)


class ShowsBeforeDeciding(Text):
    """What may begin a stop string is shown at once."""

    def _show(self, new: str) -> str:
        before = self._held
        text = super()._show(new)
        return (text + self._held)[len(before):]


class LosesHeldText(Text):
    """What is held back at the end is lost."""

    def finish(self) -> str:
        shown = super().finish()
        return shown[:len(shown) - len(self._words.finish())] if not self.stops else ""


class FirstListedStopCuts(Text):
    """The stop that is listed first cuts, though another came before it."""

    def _cut(self, text: str) -> int | None:
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        return max(found) if found else None


class StopIsShown(Text):
    """The stop string is part of the text."""

    def _cut(self, text: str) -> int | None:
        found = [at + len(stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        return min(found) if found else None


class RestartsAfterAMiss(Text):
    """After a beginning that fails, the characters in it are not looked at again."""

    def _undecided(self, text: str) -> int:
        ats = [at for stop in self.stops
               if (at := text.find(stop[0])) >= 0 and stop.startswith(text[at:])]
        return len(text) - min(ats) if ats else 0


class DecodesTokenByToken(Text):
    """Each token is made text by itself."""

    def push(self, token: int) -> str:
        words = Detokenizer(self._words._tokenizer)
        return self._show(words.push(token) + words.finish())


class EndIsLost(Text):
    """Bytes that are left at the end are dropped."""

    def finish(self) -> str:
        self._words = Detokenizer(self._words._tokenizer)
        return super().finish()


class LengthBeatsStop(Reply):
    """A stop string in the last token allowed is reported as length."""

    def _reason(self, event: Ended) -> str:
        return "length" if event.reason == "length" else super()._reason(event)


class EosIsLength(Reply):
    """A text that ended by itself is reported as cut off."""

    def _reason(self, event: Ended) -> str:
        return "length" if event.reason == "eos" else super()._reason(event)


class GoesOnBehindAStop(Reply):
    """The request is not ended at its stop string, only its text is."""

    def leave(self, reason: Any = "disconnect") -> None:
        if reason != "stop":
            super().leave(reason)


class EndTokenIsNotCounted(Reply):
    """The end token is no part of the usage."""

    def _post(self, piece: Piece | Done) -> None:
        if isinstance(piece, Done) and piece.reason == "stop" and not self.text.stops:
            piece = replace(piece, completion=piece.completion - 1)
        super()._post(piece)


class LongestPromptCounts(Reply):
    """The usage tells the longest prompt that was ever seen, as padding makes it."""

    longest = 0

    def __init__(self, request: Request, *rest: Any) -> None:
        super().__init__(request, *rest)
        type(self).longest = max(self.longest, len(request.tokens))

    def _post(self, piece: Piece | Done) -> None:
        super()._post(replace(piece, prompt=self.longest) if isinstance(piece, Done) else piece)


class CachedIsNotTold(Reply):
    """Reuse happens and is not told."""

    def _post(self, piece: Piece | Done) -> None:
        super()._post(replace(piece, cached=0) if isinstance(piece, Done) else piece)


class PendingIsPoppedForAll(Reply):
    """When one request ends, the others lose the log-probs of the token they wait for."""

    ended = 0
    seen = 0

    def _token(self, event: Token) -> None:
        self.lost, self.seen = self.seen < PendingIsPoppedForAll.ended, PendingIsPoppedForAll.ended
        super()._token(event)

    def _end(self, event: Ended) -> None:
        PendingIsPoppedForAll.ended += 1
        super()._end(event)

    def _post(self, piece: Piece | Done) -> None:
        if isinstance(piece, Piece) and self.lost:
            piece = replace(piece, emitted=None)
        super()._post(piece)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lost, self.seen = False, PendingIsPoppedForAll.ended


class ErrorsAreSilent(Reply):
    """An engine error ends the request, and nobody tells the client."""

    def _end(self, event: Ended) -> None:
        if event.reason != "error":
            super()._end(event)


class ErrorsLookFinished(Reply):
    """A reply that an error cut off looks like a whole one."""

    def _post(self, piece: Piece | Done) -> None:
        if isinstance(piece, Done) and piece.failed is not None:
            piece = replace(piece, failed=None, reason="stop")
        super()._post(piece)


class DisconnectIsForgotten(Reply):
    """A client that leaves is served to the end."""

    def leave(self, reason: Any = "disconnect") -> None:
        if reason != "disconnect":
            super().leave(reason)


class DisconnectEndsTheNewest(Reply):
    """The newest request is cancelled, whoever left."""

    newest: Sequence[str] = ()

    def send(self) -> None:
        super().send()
        DisconnectEndsTheNewest.newest = (self.request.id,)

    def leave(self, reason: Any = "disconnect") -> None:
        if reason == "disconnect":
            self._driver.cancel(DisconnectEndsTheNewest.newest[0], reason)
        else:
            super().leave(reason)
