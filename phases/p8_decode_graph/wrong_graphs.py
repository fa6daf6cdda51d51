"""Wrong graphs: stale inputs, coarse keys, captures that touch live state."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.model import Model
from engine.path import Path, Rows, Sink, one_by_one
from engine.state import Pool
from falsifiers.judging.subject import Builder, Subject
from phases.p8_decode_graph.attacks import graphs_of, use_graphs
from phases.p8_decode_graph.kernel_graphs import Graph, Graphs, Key
from phases.p8_decode_graph.kernel_inputs import Inputs


def with_graph_class(wrong: type[Graphs]) -> Builder:
    """Return a builder whose path replays graphs of another class."""
    def build(subject: Subject) -> Subject:
        graphs = wrong(graphs_of(subject.path).eager)
        return replace(subject, path=use_graphs(subject.path, graphs))

    return build


def with_input_class(wrong: type[Inputs]) -> Builder:
    """Return a builder whose graphs have inputs of another class."""
    return with_graph_class(type("WithInputs", (Graphs,), {"inputs": wrong}))


def with_coarse_key(**same: Any) -> Builder:
    """Return a builder whose keys have the same value in some fields."""
    return with_graph_class(
        type("Coarse", (Graphs,), {"place": lambda self, key: replace(key, **same)}))


class KeepsOldPointers(Inputs):
    def fill(self, spare: Pool, pool: Pool | None, tokens: Sequence[int], rows: Rows) -> None:
        before, m = self.pointers.clone(), len(rows.slots)
        super().fill(spare, pool, tokens, rows)
        if pool is not None:
            self.pointers[:, m:] = before[:, m:]


def _inputs_with_pads(choose: Callable[[Pool, Rows, int], Sequence[int]]) -> type[Inputs]:
    class Padded(Inputs):
        def fill(self, spare: Pool, pool: Pool | None, tokens: Sequence[int], rows: Rows) -> None:
            super().fill(spare, pool, tokens, rows)
            pads = len(self.tokens) - len(rows.slots)
            if pool is not None and pads:
                slots = choose(pool, rows, pads)
                self.pointers[:, len(rows.slots):] = pool.addresses(slots).to(self.raw.device)

    return Padded


def free_slots(pool: Pool, rows: Rows, pads: int) -> list[int]:
    """Return `pads` slots that this step does not name."""
    others = [slot for slot in range(pool.slots) if slot not in rows.slots] or [0]
    return [others[i % len(others)] for i in range(pads)]


PadsTakeFreeSlots = _inputs_with_pads(free_slots)
PadsRepeatTheLast = _inputs_with_pads(lambda pool, rows, pads: [rows.slots[-1]] * pads)
PadsAreSlotZero = _inputs_with_pads(lambda pool, rows, pads: [0] * pads)


def stale_inputs(name: str) -> type[Inputs]:
    """Return inputs whose field `name` is written only once."""
    class Stale(Inputs):
        def fill(self, spare: Pool, pool: Pool | None, tokens: Sequence[int], rows: Rows) -> None:
            before = getattr(self, name).clone()
            super().fill(spare, pool, tokens, rows)
            if pool is not None and vars(self).get("used"):
                getattr(self, name).copy_(before)
            if pool is not None:
                self.__dict__["used"] = True

    return Stale


class AdvancesPadding(Inputs):
    def advance(self, chosen: Tensor) -> None:
        self.live.fill_(1)
        super().advance(chosen)


class KeepsTokens(Inputs):
    def advance(self, chosen: Tensor) -> None:
        super().advance(self.tokens)


class KeepsLengths(Inputs):
    def advance(self, chosen: Tensor) -> None:
        before = self.lengths.clone()
        super().advance(chosen)
        self.lengths.copy_(before)


class AdvancesTwice(Inputs):
    def advance(self, chosen: Tensor) -> None:
        super().advance(chosen)
        self.positions.add_(self.live)


class PerStepPointers(Inputs):
    def rows(self, spare: Pool, reach: int) -> Rows:
        rows = super().rows(spare, reach)
        assert rows.operands is not None
        table = replace(rows.operands.table, pointers=self.pointers.clone())
        return replace(rows, operands=replace(rows.operands, table=table))


class CapturesLiveRows(Graphs):
    """The warm run of a capture advances the rows of its step."""

    def step_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
        captured = self.meter.captures
        logits = super().step_rows(path, model, pool, tokens, rows, sink)
        if self.meter.captures > captured:  # as if the warm run had taken the step first
            self.eager.step_rows(path, model, pool, tokens, rows, None)
        return logits


class HandsOutItsBuffer(Graphs):
    def step_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
        logits = super().step_rows(path, model, pool, tokens, rows, sink)
        buffer: Tensor = self.__dict__.setdefault("buffers", {}).setdefault(logits.shape, logits)
        return buffer.copy_(logits)


class RingOfBuffers(Graphs):
    """Two buffers alternate, so that the logits of a step survive one more step."""

    def step_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
        logits = super().step_rows(path, model, pool, tokens, rows, sink)
        ring = self.__dict__.setdefault("ring", {})
        self.turn = 1 - self.__dict__.get("turn", 0)
        buffer: Tensor = ring.setdefault((id(pool), self.turn, logits.shape), logits)
        return buffer.copy_(logits)


class NeverReplays(Graphs):
    def _graph(self, *args: Any, **named: Any) -> Graph | None:
        return None


class ReachesTheFirstRow(Graphs):
    def step_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
        self.first_reach = rows.positions[0] + 1
        return super().step_rows(path, model, pool, tokens, rows, sink)

    def _graph(self, path: Path, model: Model, pool: Pool, m: int, reach: int,
               greedy: bool) -> Graph | None:
        return super()._graph(path, model, pool, m, reach if greedy else self.first_reach, greedy)


class ReachesTheFirstStep(Graphs):
    def greedy_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                    steps: int) -> list[list[int]]:
        self.later_steps = steps - 1
        return super().greedy_rows(path, model, pool, tokens, rows, steps)

    def _graph(self, path: Path, model: Model, pool: Pool, m: int, reach: int,
               greedy: bool) -> Graph | None:
        first_reach = reach - self.later_steps if greedy else reach
        return super()._graph(path, model, pool, m, first_reach, greedy)


class CapturesEveryStep(Graphs):
    def _graph(self, *args: Any, **named: Any) -> Graph | None:
        self._held.clear()
        return super()._graph(*args, **named)


class RaisesTheFailure(Graphs):
    def _captured(self, key: Key, path: Path, model: Model) -> Graph | None:
        graph = super()._captured(key, path, model)
        if graph is None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return graph


class TriesAgain(Graphs):
    def _graph(self, *args: Any, **named: Any) -> Graph | None:
        graph = super()._graph(*args, **named)
        if graph is None:
            self._held = OrderedDict((k, g) for k, g in self._held.items() if g[0] is not None)
        return graph


class Reseeds(Graphs):
    def _captured(self, key: Key, path: Path, model: Model) -> Graph | None:
        torch.manual_seed(0)
        return super()._captured(key, path, model)


class KeepsAll(Graphs):
    def __init__(self, eager: Path, capture: Any = None, most: int = 0) -> None:
        super().__init__(eager, capture, 1 << 20)


class DropsTheNewest(Graphs):
    def _graph(self, *args: Any, **named: Any) -> Graph | None:
        if len(self._held) == self.most:
            self._held.popitem(last=True)
            self.meter.evictions += 1
        return super()._graph(*args, **named)


class ReplaysChunks(Graphs):
    """A replay takes the first token of a chunk and drops the rest."""

    def step_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
        firsts = [own[0] for _, _, own in rows.spans(tokens)]
        return super().step_rows(path, model, pool, firsts,
                                 Rows.decode(rows.slots, rows.positions), sink)


class IgnoresTheSink(Graphs):
    def step_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
        return super().step_rows(path, model, pool, tokens, rows, None)


class TakesNaN(Graphs):
    def refuse(self, chosen: Tensor) -> None:
        pass


def with_unchecked_runs(subject: Subject) -> Subject:
    """Return the subject with a path that checks greedy runs one step at a time."""
    class Unchecked(Path):
        def decode_greedy(self, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                          steps: int) -> list[list[int]]:
            return one_by_one(self, model, pool, tokens, rows, steps)

    parts = {name: getattr(subject.path, name) for name in Path.__dataclass_fields__}
    return replace(subject, path=Unchecked(**parts))


