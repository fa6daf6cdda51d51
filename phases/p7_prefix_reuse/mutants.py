"""Wrong ways to reuse a prefix, each with one fault, and the falsifiers that must kill it."""

from falsifiers.subject import Mutant

MUTANTS: tuple[Mutant, ...] = ()
