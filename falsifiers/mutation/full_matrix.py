"""Every mutant of a phase against every quick case, and the fewest cases that keep the kills."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from falsifiers.judging.errors import Declined, SuiteError, Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.judging.verdict import Record
from falsifiers.mutation.mutants import Bank, attack
from falsifiers.tensor_files.safetensors_file import UnreadableError, content

LARGEST = 1 << 26
"""Bytes that a kept matrix may have."""


class Tried(Record):
    """One case of the matrix."""

    id: str
    falsifier: str
    seconds: float
    """What it took on the right subject."""


class Pairs(Record):
    """One mutant of the matrix."""

    name: str
    expected: tuple[str, ...]
    """The falsifiers that must each kill it."""
    rungs: dict[str, str]
    """By the id of each case that killed it."""
    seconds: float


class Full(Record):
    """All pairs of a phase."""

    phase: str
    cases: tuple[Tried, ...]
    idle: dict[str, str]
    """Cases that the right subject does not pass, and why; they cannot kill."""
    mutants: tuple[Pairs, ...]
    not_run: tuple[str, ...] = ()
    """Mutants that need a device."""

    def demands(self) -> set[tuple[str, str]]:
        """Return the kill score: each mutant with each falsifier that must kill it and does."""
        of = {case.id: case.falsifier for case in self.cases}
        return {(one.name, of[case]) for one in self.mutants for case in one.rungs
                if of[case] in one.expected}

    def survivors(self) -> list[str]:
        """Return the mutants that a falsifier named as their killer did not kill."""
        kept = self.demands()
        return [one.name for one in self.mutants
                if any((one.name, falsifier) not in kept for falsifier in one.expected)]


def full(bank: Bank, tell: Callable[[str], None] = lambda what: None) -> Full:
    """Attack each mutant that runs here with every quick case of the tiers that do."""
    cases, idle = list[Tried](), dict[str, str]()
    expanded = {case.id: case for case in bank.contract.expand()
                if case.quick and case.tier in bank.tiers and case.tier != "cuda"
                and case.falsifier in bank.falsifiers}
    for case in expanded.values():
        judge, started = Judge(case), time.perf_counter()
        try:
            bank.falsifiers[case.falsifier](case=case, subject=bank.subject_for(case), judge=judge)
        except (Declined, Unmeasurable) as why:
            idle[case.id] = str(why)
            continue
        except Exception as error:
            raise SuiteError(f"{case.id} does not pass without a mutant either: "
                             f"{type(error).__name__}: {error}") from error
        took = round(time.perf_counter() - started, 3)
        if judge.compared:
            cases.append(Tried(id=case.id, falsifier=case.falsifier, seconds=took))
        else:
            idle[case.id] = "it compares nothing"
        tell(case.id)
    rows, away = list[Pairs](), list[str]()
    for mutant in bank.mutants:
        if mutant.device == "cuda":
            away.append(mutant.name)
            continue
        started, rungs = time.perf_counter(), dict[str, str]()
        for one in cases:
            case = expanded[one.id]
            rung = attack(bank.falsifiers[case.falsifier], case,
                          mutant.build(bank.subject_for(case)))
            if rung is not None:
                rungs[case.id] = rung
        rows.append(Pairs(name=mutant.name, expected=mutant.killers, rungs=rungs,
                          seconds=round(time.perf_counter() - started, 3)))
        tell(mutant.name)
    return Full(phase=bank.contract.phase, cases=tuple(cases), idle=idle, mutants=tuple(rows),
                not_run=tuple(away))


def read(path: Path) -> Full:
    """Read a matrix that was printed as JSON; raise `SuiteError` when a file holds none."""
    try:
        return Full.model_validate_json(content(path, LARGEST))
    except (UnreadableError, ValueError) as error:
        why = error.errors()[0] if isinstance(error, ValidationError) else None
        told = (": ".join((*map(str, why["loc"]), why["msg"])) if why
                else str(error).splitlines()[0])
        raise SuiteError(f"{path}: holds no matrix of `rowtwin mutants --full --json`: "
                         f"{told}") from None


def smallest(matrix: Full) -> list[Tried]:
    """Return the fewest cases by which each mutant still dies by each falsifier it names.

    Only cases of a falsifier can meet what is asked of it, so each is solved by itself, exactly;
    among sets of one size the quickest is taken.
    """
    demands, chosen = matrix.demands(), set[str]()
    for falsifier in dict.fromkeys(case.falsifier for case in matrix.cases):
        wanted = {name for name, by in demands if by == falsifier}
        kills = {case.id: frozenset(one.name for one in matrix.mutants
                                    if case.id in one.rungs and one.name in wanted)
                 for case in matrix.cases if case.falsifier == falsifier}
        chosen |= set(cover(wanted, kills, {case.id: case.seconds for case in matrix.cases}))
    return [case for case in matrix.cases if case.id in chosen]


def cover(wanted: set[str], sets: Mapping[str, frozenset[str]],
          costs: Mapping[str, float]) -> tuple[str, ...]:
    """Return the fewest sets, then the cheapest, that together hold everything wanted."""
    useful = [name for name, held in sets.items() if held & wanted and not any(
        held <= other and (costs[rival], rival) < (costs[name], name)
        for rival, other in sets.items())]
    best: list[tuple[str, ...]] = []

    def cost(names: Sequence[str]) -> tuple[int, float]:
        return len(names), sum(costs[name] for name in names)

    def search(left: frozenset[str], names: tuple[str, ...]) -> None:
        if best and cost(names) >= cost(best[0]):
            return
        if not left:
            best[:] = [names]
            return
        rarest = min(sorted(left), key=lambda one: sum(one in sets[name] for name in useful))
        for name in sorted(useful, key=lambda name: (-len(sets[name] & left), costs[name])):
            if rarest in sets[name]:
                search(left - sets[name], (*names, name))

    search(frozenset(wanted), ())
    if not best:
        raise SuiteError(f"no sets hold all of {', '.join(sorted(wanted))}")
    return best[0]


def lines(matrix: Full) -> list[str]:
    """Return the matrix and the smallest selection as lines for a person."""
    told = []
    for one in matrix.mutants:
        by = {case.falsifier for case in matrix.cases if case.id in one.rungs}
        extra = sorted(by - set(one.expected))
        word = "SURVIVED" if one.name in matrix.survivors() else "died"
        told.append(f"{one.name:<44} {word:<9} by {len(one.rungs)} of {len(matrix.cases)} cases: "
                    + ", ".join(f"{'' if name in by else 'not '}{name}" for name in one.expected)
                    + (f"; also {', '.join(extra)}" if extra else ""))
    few, every = smallest(matrix), matrix.cases
    took, whole = (sum(case.seconds for case in cases) for cases in (few, every))
    told += ["", f"{len(few)} of {len(every)} quick cases keep the kill score, "
                 f"{len(matrix.demands())} pairs of a mutant and a falsifier; on the right subject "
                 f"they take {took:.1f} of {whole:.1f} s:"]
    told += [f"  {case.id} ({case.seconds:.2f} s)" for case in few]
    told += [f"not run, for want of a device: {name}" for name in matrix.not_run]
    told += [f"cannot kill here: {name}: {why}" for name, why in matrix.idle.items()]
    return told
