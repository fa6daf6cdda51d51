"""Compare two traces of the same tokens op by op, and find the first difference.

Without bounds, two tensors agree when their bits are equal. For traces of different arithmetics,
bounds limit how far a token's vector may be from the other's; each cell counts both kinds.
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
"""Differences that a cell stores; all are counted."""
TensorKey = tuple[str, int, str]
"""An op's id, a slot, a tensor's name."""


@dataclass(frozen=True)
class Bounds:
    """How far each token's vector may be from the other's to agree."""

    cosine: float
    """The smallest cosine."""
    norm: float
    """The largest distance of the ratio of norms from 1."""


@dataclass(frozen=True)
class Difference:
    """A tensor that is not bit-identical to the other trace's."""

    place: Location
    row: int
    values: ValueDiff | None
    """None when the shapes or types differ."""
    note: str
    cosine: float | None
    """The smallest cosine of a token's vector; None if shapes differ."""
    norm: float | None
    """The largest distance of a token's ratio of norms from 1."""
    within: bool
    """Whether it is inside the bounds."""


@dataclass
class Cell:
    """The comparison of one layer in one step, over all slots."""

    step: int
    layer: str
    """The layer's number, or the op outside the layers."""
    compared: int = 0
    differ: int = 0
    """Tensors outside the bounds; without bounds, all that are not equal."""
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
    """The result of comparing two traces."""

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
    """Compare every tensor of one trace with the other's of the same step, slot, op and name.

    Raises `SuiteError` when the traces ran other tokens, or have no tensor in common.
    """
    ours = {step.line.step: step for step in got.steps}
    theirs = {step.line.step: step for step in want.steps}
    common = [number for number in ours if number in theirs]
    if not common:
        raise SuiteError(f"{got.folder} and {want.folder} have no step in common")
    cells: dict[tuple[int, str], Cell] = {}
    layers: dict[str, None] = {}
    unpaired: dict[str, None] = {}
    first: Difference | None = None
    for number in common:
        _require_same_rows(ours[number], theirs[number], got, want)
        pairs = _pair_tensors(ours[number], theirs[number], names, unpaired)
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
        raise SuiteError(f"{got.folder} and {want.folder} have no tensor with the same op, slot "
                         f"and name, so nothing can be compared: map the names with --names FILE")
    report = Report(got.description, want.description, len(common), total, list(unpaired))
    if first is not None:
        report = replace(report, place=first.place, row=first.row, values=first.values,
                         note=first.note)
    return Comparison(report, first, cells, tuple(_order_layers(layers)), bounds,
                      len(ours) + len(theirs) - 2 * len(common))


def _order_layers(layers: dict[str, None]) -> Iterator[str]:
    """Yield the ops before the first layer, the layers by number, and the ops after them."""
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
    """Raise `SuiteError` when two steps do not have the same rows."""
    left, right = ({row.slot: (row.position, row.tokens) for row in step.line.rows}
                   for step in (ours, theirs))
    if left != right:
        slot = next(slot for slot in [*left, *right] if left.get(slot) != right.get(slot))
        raise SuiteError(f"step {ours.line.step} gives slot {slot} other tokens or another "
                         f"position in {got.folder} than in {want.folder}: only runs over the "
                         f"same tokens can be compared")


def _pair_tensors(ours: TraceStep, theirs: TraceStep, names: NameMap,
                  unpaired: dict[str, None]) -> Iterator[tuple[TensorKey, Tensor, Tensor]]:
    """Yield tensors of the same key, in the order of the first trace.

    Adds the ops of tensors that only one trace has to `unpaired`.
    """
    left, right = _tensors_by_key(ours, names), _tensors_by_key(theirs, names)
    unpaired.update(dict.fromkeys(key[0] for key in [*left, *right]
                                  if key not in left or key not in right))
    left_values, right_values = ours.values(), theirs.values()
    for key, line in left.items():
        if key in right:
            yield key, left_values[line.tensor], right_values[right[key].tensor]


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
        want = want.reshape(got.shape)  # one of the two may have heads as an axis
    same = got.shape == want.shape
    if same and got.dtype == want.dtype and torch.equal(as_bits(got), as_bits(want)):
        return None
    kind = "output" if name == OUTPUT else name.split()[0]
    place = Location(number, "logits" if op == "logits" else kind, op, slot, name)
    row = [row.slot for row in step.line.rows].index(slot)
    cosine, norm = _worst_spread(got, want) if same and got.numel() else (None, None)
    within = bounds is not None and cosine is not None and norm is not None \
        and cosine >= bounds.cosine and norm <= bounds.norm  # NaN is not within
    if bounds is not None and same:
        wider = torch.promote_types(got.dtype, want.dtype)  # in f32, 1e300 would be infinity
        got, want = got.to(wider), want.to(wider)
    values, note = diff_values(got, want)
    return Difference(place, row, values, note, cosine, norm, within)


def _worst_spread(got: Tensor, want: Tensor) -> tuple[float, float]:
    """Return the smallest cosine of a token's vector, and the largest |ratio of norms - 1|."""
    cosine, ratio = cosine_and_norm_ratio(got.reshape(len(got), -1), want.reshape(len(want), -1))
    return float(cosine.min()), float((ratio - 1).abs().max())
