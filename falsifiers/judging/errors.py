"""Exceptions that end a case: the kernel is wrong, the suite is broken, or there is no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from falsifiers.judging.verdict import Finding


class ParityBroken(AssertionError):
    """The subject broke a claim; `finding` says where and how."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.sentence)
        self.finding = finding


class SuiteError(Exception):
    """The suite, a contract or the usage is wrong; the subject was not judged."""


class Declined(Exception):
    """A candidate does not support a case; the case counts as declined, never as passed."""


class Unmeasurable(Exception):
    """This machine lacks what a case needs, so the case neither passes nor fails."""


def shorten_name(name: str) -> str:
    """Return a name from a file in at most 80 printable characters."""
    text = name if name.isprintable() else ascii(name)
    return text if len(text) <= 80 else f"{text[:77]}..."
