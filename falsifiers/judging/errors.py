"""The two ways a judgement can end badly: the kernel is wrong, or the suite is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from falsifiers.judging.verdict import Finding


class ParityBroken(AssertionError):
    """The thing under test broke a claim; `finding` says where and how."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.sentence)
        self.finding = finding


class SuiteError(Exception):
    """The suite, its contract or its use is broken: nothing is said about the thing under test."""


class Declined(Exception):
    """A candidate gave a reason not to take a case; it counts as declined, never as passed."""


class Unmeasurable(Exception):
    """The evidence a case needs cannot be had here, so it neither passes nor fails."""


def shorten_name(name: str) -> str:
    """Return a name from a file as one short piece of a line."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= 80 else f"{text[:77]}..."
