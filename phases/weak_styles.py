"""What common styles of test miss: each weakens one part of a scene that shows a mutant's fault.

The strict scene has rows of different prompts and lengths, slots that dead tenants left full of
NaN, several widths, rows that sit out a step, and holds every row's logits to the bits that the
unbroken path gives the same sequence alone. A style that sees no difference lets the mutant pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.candidate import Engine, engine_of
from engine.path import Rows
from falsifiers.judging.batch_driver import SoloStream, make_prompt, run_solo
from falsifiers.judging.judge import as_bits
from falsifiers.judging.matrix import Bank
from falsifiers.judging.subject import Mutant, Subject

PHASES = ("p1", "p4", "p5", "p6", "p8")
"""Those whose mutants are wrong paths; other faults are not in a step's logits."""
MODEL, CAPACITY, DECODE_STEPS = "nano", 64, 4
NAN = float("nan")
EqualFn = Callable[[Tensor, Tensor], bool]
StepPairs = Iterator[tuple[Tensor, Tensor]]
"""What each step of a scene gave, f32[rows, vocab], and what it should have."""


@dataclass(frozen=True)
class BatchScenario:
    """What a test puts into its batches."""

    widths: tuple[int, ...] = (2, 5)
    distinct: bool = True
    """Whether rows have prompts of their own."""
    ragged: bool = True
    """Whether prompts have lengths of their own."""
    stale_value: float = NAN
    """What slots hold before they are cleared for a sequence."""


def same_bits(got: Tensor, want: Tensor) -> bool:
    """Return whether every bit is the same."""
    return got.shape == want.shape and torch.equal(as_bits(got), as_bits(want))


def same_tokens(got: Tensor, want: Tensor) -> bool:
    """Return whether each row's likeliest token is the same."""
    return torch.equal(got.argmax(-1), want.argmax(-1))


def close_cosine(got: Tensor, want: Tensor) -> bool:
    """Return whether the cosine of the step's logits, taken as one vector, is 0.999 or more."""
    a, b = got.double().flatten(), want.double().flatten()
    return bool(a @ b >= 0.999 * a.norm() * b.norm())


def small_nmse(got: Tensor, want: Tensor) -> bool:
    """Return whether the squared error is at most 5e-4 of the squared logits of the step."""
    a, b = got.double(), want.double()
    return bool((a - b).square().sum() <= 5e-4 * b.square().sum())


STRICT = BatchScenario()
STYLES: dict[str, tuple[BatchScenario, EqualFn]] = {
    "tokens only": (STRICT, same_tokens),
    "cosine 0.999": (STRICT, close_cosine),
    "NMSE 5e-4": (STRICT, small_nmse),
    "identical prompts": (BatchScenario(distinct=False, ragged=False), same_bits),
    "m = 2 only": (BatchScenario(widths=(2,)), same_bits),
    "zeroed pool": (BatchScenario(stale_value=0.0), same_bits),
    "aligned lengths": (BatchScenario(ragged=False), same_bits),
    "all of these": (
        BatchScenario(widths=(2,), distinct=False, ragged=False, stale_value=0.0),
        same_tokens,
    ),
}
"""Each is the strict scene, or bits, with one part weakened; the last with every part."""


@dataclass(frozen=True)
class MissedMutant:
    """A mutant whose fault the strict scene shows, and the styles that let it pass."""

    phase: str
    name: str
    styles: tuple[str, ...]


def try_styles(
    bank: Bank, mutant: Mutant, names: Collection[str] = tuple(STYLES)
) -> MissedMutant | None:
    """Return which of some styles a mutant passes; None where the strict scene shows no fault."""
    right = bank.subject_for(next(c for c in bank.contract.expand() if c.tier == "cpu"))
    if mutant.device != "cpu" or mutant.build(right).candidate is not None:
        return None
    strict: list[tuple[Tensor, Tensor]] | None
    try:
        strict = list(_run_scenario(mutant.build(right), right, STRICT))
    except Exception:  # whatever a wrong path raises, any test of the same scene sees it
        strict = None

    def passes(scene: BatchScenario, same: EqualFn) -> bool:
        if scene == STRICT:
            return strict is not None and all(same(got, want) for got, want in strict)
        try:
            return all(
                same(got, want) for got, want in _run_scenario(mutant.build(right), right, scene)
            )
        except Exception:
            return False

    if passes(STRICT, same_bits):
        return None
    styles = tuple(name for name, how in STYLES.items() if name in names and passes(*how))
    return MissedMutant(bank.contract.phase, mutant.name, styles)


def try_banks(banks: Sequence[Bank]) -> tuple[list[MissedMutant], list[str]]:
    """Weigh every mutant of some banks; return those shown and the names of the others."""
    found, quiet = list[MissedMutant](), list[str]()
    for bank in banks:
        for mutant in bank.mutants:
            missed = try_styles(bank, mutant)
            if missed is None:
                quiet.append(f"{bank.contract.phase}/{mutant.name}")
            else:
                found.append(missed)
    return found, quiet


def format_table(found: Sequence[MissedMutant]) -> Iterator[str]:
    """Yield the lines of a Markdown table: how many mutants each style lets pass, by phase."""
    phases = list(dict.fromkeys(one.phase for one in found))
    yield f"| {' | '.join([TABLE_HEAD, *phases])} |"
    yield "|---" * (2 + len(phases)) + "|"
    yield _table_row("strict scene, bits", found, [], phases)
    for style in STYLES:
        yield _table_row(style, found, [one for one in found if style in one.styles], phases)


TABLE_HEAD = "what a test does | lets pass"
"""How the table's first line starts."""


def _table_row(name: str, found: Sequence[MissedMutant], passed: Sequence[MissedMutant],
         phases: Sequence[str]) -> str:
    counts = [sum(one.phase == phase for one in passed) for phase in phases]
    return f"| {' | '.join([name, f'{len(passed)} of {len(found)}', *map(str, counts)])} |"


def _run_scenario(wrong: Subject, right: Subject, scene: BatchScenario) -> StepPairs:
    """Yield what a subject gives at each step and what it should."""
    engine = engine_of(wrong.path, wrong.candidate, wrong.models(MODEL))
    for width in scene.widths:
        streams = [_solo_stream(right, *_prompt_shape(scene, row)) for row in range(width)]
        yield from _run_batch(engine, streams, scene.stale_value)


def _prompt_shape(scene: BatchScenario, row: int) -> tuple[int, int]:
    """Return the seed and the length of a row's prompt."""
    return (200 + row if scene.distinct else 200), 1 + (5 * row + 2) % 7 if scene.ragged else 4


_SOLO_STREAMS: dict[tuple[str, int, int], SoloStream] = {}


def _solo_stream(right: Subject, seed: int, length: int) -> SoloStream:
    """Return what the unbroken path gives a prompt alone, run once a path."""
    key = right.path.name, seed, length
    if key not in _SOLO_STREAMS:
        model = right.models(MODEL)
        prompt = make_prompt(seed, length, model.config.vocab)
        _SOLO_STREAMS[key] = run_solo(
            engine_of(right.path, None, model), Rows, prompt, DECODE_STEPS, CAPACITY
        )
    return _SOLO_STREAMS[key]


def _run_batch(engine: Engine, streams: Sequence[SoloStream], tenant: float) -> StepPairs:
    """Yield each step: prompts in two chunks, all rows both ways round, all but one, all."""
    width = len(streams)
    pool = engine.new_pool(width, CAPACITY)
    for slot in range(width):
        held = engine.read_state(pool, slot)
        fill = {name: torch.full_like(x, tenant) for name, x in held.items()}
        engine.write_state(pool, slot, fill)  # type: ignore[attr-defined]
        engine.clear_slot(pool, slot)
    fed, every = [0] * width, list(range(width))
    lengths = [len(stream.logits) - DECODE_STEPS for stream in streams]
    first = [(length + 1) // 2 for length in lengths]
    rest = [length - count for length, count in zip(lengths, first, strict=True)]
    behind = [row for row in every if rest[row]]
    step = partial(_run_step, engine, pool, streams, fed)
    yield step(every, first)
    yield step(behind, [rest[row] for row in behind])
    for rows in (every, every[::-1], every[:-1][::-1], every):
        yield step(rows, [1] * len(rows))


def _run_step(engine: Engine, pool: object, streams: Sequence[SoloStream], fed: list[int],
          rows: Sequence[int], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    given = [token for row, count in zip(rows, counts, strict=True)
             for token in streams[row].tokens[fed[row]:fed[row] + count]]
    slots = tuple(len(streams) - 1 - row for row in rows)
    named = Rows(slots, tuple(fed[row] for row in rows), tuple(counts))
    got = engine.step(given, named, pool).clone()
    for row, count in zip(rows, counts, strict=True):
        fed[row] += count
    return got, torch.stack([streams[row].logits[fed[row] - 1] for row in rows])
