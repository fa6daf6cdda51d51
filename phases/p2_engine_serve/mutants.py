"""The faults planted in P2."""

from __future__ import annotations

from falsifiers.subject import Mutant

MUTANTS: tuple[Mutant, ...] = ()
