"""Two traces of the same tokens held together, op by op, to the first place where they part.

Without bounds two tensors agree when their bits do. Traces of different arithmetics never agree
so; for them bounds say how far a token's vector may be, and a cell of the map tells which it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from falsifiers.bisect.divergence import Location, Report, ValueDiff, diff_values
from falsifiers.bisect.trace import OUTPUT
from falsifiers.bisect.trace_files import TensorLine, TraceDir, TraceStep
from falsifiers.bisect.trace_names import NameMap
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.judge import as_bits
from falsifiers.judging.tolerance import cosine_and_norm_ratio

MAX_DIFFERENCES = 12
"""Differences of a cell that are kept; all are counted."""
TensorKey = tuple[str, int, str]
"""An op's id, a slot, a tensor's name."""


@dataclass(frozen=True)
class Bounds:
    """How far each token's vector may be from the other's and still agree."""

    cosine: float
    norm: float
    """The most by which the ratio of the norms may leave 1."""


@dataclass(frozen=True)
class Difference:
    """One tensor that is not the other's bit for bit."""

    place: Location
    row: int
    values: ValueDiff | None
    """None when the shapes or types differ."""
    note: str
    cosine: float | None
    """The least cosine of a token's vector, None where it cannot be told."""
    norm: float | None
    """The largest distance of a token's ratio of norms from 1."""
    within: bool
    """Whether it is inside of the bounds."""


@dataclass
class Cell:
    """What one layer made of one step, over all slots."""

    step: int
    layer: str
    """The layer's number, or the op outside of the layers."""
    compared: int = 0
    differ: int = 0
    """Tensors outside of the bounds; without bounds, any that are not equal."""
    within: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def status(self) -> str:
        """`equal`, `within`, `differ`, or `none` when nothing was compared."""
        if not self.compared:
            return "none"
        return "differ" if self.differ else "within" if self.within else "equal"


@dataclass(frozen=True)
class Comparison:
    """What two traces said of each other."""

    report: Report
    first_difference: Difference | None
    cells: dict[tuple[int, str], Cell]
    layers: tuple[str, ...]
    """In the order in which a step runs them."""
    bounds: Bounds | None
    steps_left_out: int
    """Steps that only one of the two has."""


def compare_traces(
    got: TraceDir, want: TraceDir, names: NameMap, bounds: Bounds | None
) -> Comparison:
    """Hold every tensor of one trace to the other's of the same step, slot, op and name."""
    ours = {step.line.step: step for step in got.steps}
    theirs = {step.line.step: step for step in want.steps}
    common = [number for number in ours if number in theirs]
    if not common:
        raise SuiteError(f"{got.folder} and {want.folder} have no step in common")
    cells: dict[tuple[int, str], Cell] = {}
    layers: dict[str, None] = {}
    lost: dict[str, None] = {}
    first: Difference | None = None
    for number in common:
        _require_same_rows(ours[number], theirs[number], got, want)
        pairs = _pair_tensors(ours[number], theirs[number], names, lost)
        for key, left, right in pairs:
            layer = _layer_of(key[0])
            layers[layer] = None
            cell = cells.setdefault((number, layer), Cell(number, layer))
            cell.compared += 1
            if (found := _compare_tensors(number, ours[number], key, left, right, bounds)) is None:
                continue
            cell.within += found.within
            cell.differ += not found.within
            if first is None and not found.within:
                first = found
            if len(cell.differences) < MAX_DIFFERENCES or found is first:
                cell.differences.append(found)
    total = sum(cell.compared for cell in cells.values())
    if not total:
        raise SuiteError(f"{got.folder} and {want.folder} name no op, slot and tensor alike, so "
                         f"nothing can be compared; --names FILE maps names")
    report = Report(got.description, want.description, len(common), total, list(lost))
    if first is not None:
        report = replace(report, place=first.place, row=first.row, values=first.values,
                         note=first.note)
    return Comparison(report, first, cells, tuple(_order_layers(layers)), bounds,
                      len(ours) + len(theirs) - 2 * len(common))


def _order_layers(layers: dict[str, None]) -> Iterator[str]:
    """Yield what stands before the first layer, the layers by number, and what stands behind."""
    every = list(layers)
    numbered = [i for i, layer in enumerate(every) if layer.isdigit()]
    start = numbered[0] if numbered else len(every)
    yield from every[:start]
    yield from sorted((layer for layer in every if layer.isdigit()), key=int)
    yield from (layer for layer in every[start:] if not layer.isdigit())


def _layer_of(op: str) -> str:
    head = op.partition(".")[0]
    return head if head.isdigit() else op


def _require_same_rows(ours: TraceStep, theirs: TraceStep, got: TraceDir, want: TraceDir) -> None:
    """Refuse steps of other tokens, which have nothing to say of each other."""
    left, right = ({row.slot: (row.position, row.tokens) for row in step.line.rows}
                   for step in (ours, theirs))
    if left != right:
        slot = next(slot for slot in [*left, *right] if left.get(slot) != right.get(slot))
        raise SuiteError(f"step {ours.line.step} gives slot {slot} other tokens or another "
                         f"position in {got.folder} than in {want.folder}: only runs over the "
                         f"same tokens can be compared")


def _pair_tensors(ours: TraceStep, theirs: TraceStep, names: NameMap,
           lost: dict[str, None]) -> Iterator[tuple[TensorKey, Tensor, Tensor]]:
    """Yield tensors of the same name, in the order of the first trace; note the others' ops."""
    left, right = _tensors_by_key(ours, names), _tensors_by_key(theirs, names)
    lost.update(dict.fromkeys(key[0] for key in [*left, *right]
                              if key not in left or key not in right))
    mine, other = ours.values(), theirs.values()
    for key, line in left.items():
        if key in right:
            yield key, mine[line.tensor], other[right[key].tensor]


def _tensors_by_key(step: TraceStep, names: NameMap) -> dict[TensorKey, TensorLine]:
    found: dict[TensorKey, TensorLine] = {}
    for line in step.tensors:
        op, name = names.op(line.id), names.tensor(line.name)
        if op is None or name is None:
            continue
        if (op, line.slot, name) in found:
            raise SuiteError(f"{step.folder}: step {step.line.step} has {name!r} of {op!r} twice "
                             f"for slot {line.slot}")
        found[op, line.slot, name] = line
    return found


def _compare_tensors(number: int, step: TraceStep, key: TensorKey, got: Tensor, want: Tensor,
          bounds: Bounds | None) -> Difference | None:
    """Return how two tensors differ, or None when they have the same bits."""
    op, slot, name = key
    if got.shape[0] == want.shape[0] and got.numel() == want.numel():
        want = want.reshape(got.shape)  # heads may be an axis of their own in one of the two
    same = got.shape == want.shape
    if same and got.dtype == want.dtype and torch.equal(as_bits(got), as_bits(want)):
        return None
    kind = "output" if name == OUTPUT else name.split()[0]
    place = Location(number, "logits" if op == "logits" else kind, op, slot, name)
    row = [one.slot for one in step.line.rows].index(slot)
    cosine, norm = _worst_spread(got, want) if same and got.numel() else (None, None)
    within = bounds is not None and cosine is not None and norm is not None \
        and cosine >= bounds.cosine and norm <= bounds.norm  # NaN is not within
    if bounds is not None and same:
        kind_of = torch.promote_types(got.dtype, want.dtype)  # never narrower: 1e300 is no infinity
        got, want = got.to(kind_of), want.to(kind_of)
    values, note = diff_values(got, want)
    return Difference(place, row, values, note, cosine, norm, within)


def _worst_spread(got: Tensor, want: Tensor) -> tuple[float, float]:
    """Return the least cosine of a token's vector, and its ratio of norms farthest from 1."""
    cosine, ratio = cosine_and_norm_ratio(got.reshape(len(got), -1), want.reshape(len(want), -1))
    return float(cosine.min()), float((ratio - 1).abs().max())
