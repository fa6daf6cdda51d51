"""The graph cache of a path: which graph a step replays, capture, and eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.model import Model
from engine.ops import refuse_nan
from engine.path import Path, Rows, Sink
from engine.state import Pool
from phases.p8_decode_graph.kernel_capture import Captures
from phases.p8_decode_graph.kernel_inputs import Inputs
from phases.p8_decode_graph.reference import capture as record

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
SHORTEST = 128
"""Tokens of the shortest length bucket; each next bucket is twice as long."""
MOST = 32
"""Largest number of graphs; the least recently replayed one is evicted first."""

Capture = Callable[[Path, Callable[[Path], Tensor], Callable[[Tensor], None]],
                   tuple[Callable[[], None], Tensor]]


@dataclass
class Meter:
    """Counters that show whether graphs are used."""

    captures: int = 0
    replays: int = 0
    eager_steps: int = 0
    failed_captures: int = 0
    failure: str = ""
    """The error message of the last failed capture."""
    evictions: int = 0


@dataclass(frozen=True)
class Key:
    """Everything that changes a step's launches. The cache references the objects of the ids."""

    path: int
    model: int
    rope: int
    device: str
    kv: str
    width: int
    reach: int
    greedy: bool


@dataclass(frozen=True)
class Graph:
    """One captured step with its inputs, and references to the memory that it reads."""

    inputs: Inputs
    spare: Pool
    replay: Callable[[], None]
    out: Tensor
    """Logits f32[width, vocab], or the tokens chosen i64[width]."""
    keeps: tuple[Any, ...]


def width_of(m: int) -> int:
    """Return the smallest width of at least m rows."""
    return next(width for width in WIDTHS if width >= m)


def reach_of(tokens: int) -> int:
    """Return the smallest length bucket of at least `tokens` tokens."""
    reach = SHORTEST
    while reach < tokens:
        reach *= 2
    return reach


class Graphs:
    """A step that replays graphs for decode rows and runs the eager step otherwise."""

    inputs: type[Inputs] = Inputs

    def __init__(self, eager: Path, capture: Capture | None = None, most: int = MOST) -> None:
        self.eager, self.most, self.meter = eager, most, Meter()
        self._capture = capture
        self._captures = Captures()
        self._held: OrderedDict[Key, tuple[Graph | None, Path, Model]] = OrderedDict()

    def step_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
        """Advance every row by its tokens; return logits f32[m, vocab] of each row's last."""
        m = len(rows.slots)
        graph = None
        if sink is None and max(rows.counts) == 1 and m <= WIDTHS[-1]:
            graph = self._graph(path, model, pool, m, max(rows.positions) + 1, greedy=False)
        if graph is None:
            self.meter.eager_steps += 1
            return self.eager.step_rows(path, model, pool, tokens, rows, sink)
        graph.inputs.fill(graph.spare, pool, tokens, rows)
        graph.replay()
        self.meter.replays += 1
        return graph.out[:m].clone()

    def greedy_rows(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                    steps: int) -> list[list[int]]:
        """Take greedy steps without a host synchronisation per step; return each row's tokens."""
        m = len(rows.slots)
        graph = None
        if max(rows.counts) == 1 and m <= WIDTHS[-1]:
            graph = self._graph(path, model, pool, m, max(rows.positions) + steps, greedy=True)
        if graph is None:
            return self.eager.greedy_rows(path, model, pool, tokens, rows, steps)
        graph.inputs.fill(graph.spare, pool, tokens, rows)
        chosen = torch.empty(steps, m, dtype=torch.int64, device=pool.device)
        for step in range(steps):
            graph.replay()
            chosen[step].copy_(graph.out[:m])
        self.meter.replays += steps
        self.refuse(chosen.cpu())
        columns: list[list[int]] = chosen.T.tolist()
        return columns

    def refuse(self, chosen: Tensor) -> None:
        """Raise `InputError` if one of the tokens i64[steps, m] is -1, the mark of NaN."""
        for step in chosen:
            refuse_nan(step)

    @property
    def nbytes(self) -> int:
        """Bytes that graphs use: memory that captures reserved, inputs and spare slots."""
        graphs = [graph for graph in self.kept() if graph is not None]
        spares = {id(graph.spare): graph.spare.nbytes for graph in graphs}
        return (self._captures.nbytes + sum(spares.values())
                + sum(graph.inputs.raw.nbytes for graph in graphs))

    def kept(self) -> list[Graph | None]:
        """Return the cached graphs, None for a failed capture."""
        return [graph for graph, *_ in self._held.values()]

    def _graph(self, path: Path, model: Model, pool: Pool, m: int, reach: int,
               greedy: bool) -> Graph | None:
        """Return the graph of a step, captured if it is new, or None if its capture failed."""
        key = Key(id(path), id(model.weights), id(model.rope), pool.device, pool.kv,
                  width_of(m), reach_of(reach), greedy)
        place = self.place(key)
        if place not in self._held:
            self._held[place] = self._captured(key, path, model), path, model
            while len(self._held) > self.most:
                self._held.popitem(last=False)
                self.meter.evictions += 1
        self._held.move_to_end(place)
        return self._held[place][0]

    def place(self, key: Key) -> Key:
        """Return the cache key of a graph: its complete key."""
        return key

    def _captured(self, key: Key, path: Path, model: Model) -> Graph | None:
        room = min(SHORTEST, model.config.context)
        spare = self._spare(key) or Pool(model.config, 1, room, key.device, key.kv)
        inputs = self.inputs.make(len(spare.places), key.width, key.device)
        inputs.fill(spare, None, (), Rows((), (), ()))  # padding: a capture must touch no slot
        rows = inputs.rows(spare, key.reach)
        chosen = torch.zeros(key.width, dtype=torch.int64, device=key.device)

        def run(path: Path) -> Tensor:
            logits = self.eager.step_rows(path, model, spare, inputs.tokens, rows, None)  # type: ignore[arg-type]
            if not key.greedy:
                return logits
            path.argmax(logits, chosen, refuse=False)
            return chosen

        def tail(out: Tensor) -> None:
            if key.greedy:
                inputs.advance(out)

        capture = self._capture or (self._captures if key.device.startswith("cuda") else record)
        try:
            replay, out = capture(path, run, tail)
        except RuntimeError as error:  # capture failed: use the eager step
            self.meter.failed_captures += 1
            self.meter.failure = str(error)
            return None
        self.meter.captures += 1
        # replays read the arrays that the warm-up run copied to the device
        return Graph(inputs, spare, replay, out, (model, model.rope.table_for(key.reach), rows))

    def _spare(self, key: Key) -> Pool | None:
        """Return the spare slot of the same model's graphs, if there is one."""
        return next((graph.spare for other, (graph, *_) in self._held.items() if graph is not None
                     and (other.model, other.device, other.kv)
                     == (key.model, key.device, key.kv)), None)
