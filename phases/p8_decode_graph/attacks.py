"""Inputs of P8's falsifiers: the oracle's streams, new graphs, and events between steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.candidate import Engine, PathEngine
from engine.path import Path, Rows, reference
from falsifiers.judging.batch_driver import BatchDriver, SoloStream, make_prompt, run_solo
from falsifiers.judging.errors import Declined
from phases.p8_decode_graph.kernel_graphs import Graphs
from phases.p8_decode_graph.reference import capture as record

CAPACITY = 24
Event = Callable[[BatchDriver, random.Random], None]


def build_oracle(model: Any) -> Engine:
    """Return the engine's own path on the CPU, one row a step: the oracle of every stream."""
    return PathEngine(reference(), model)


def oracle_stream(model: Any, seed: int, length: int, decode: int,
              capacity: int = CAPACITY) -> SoloStream:
    """Return the oracle's stream for a drawn prompt and its greedy tokens."""
    return run_solo(build_oracle(model), Rows, make_prompt(seed, length, model.config.vocab),
                    decode, capacity, right=reference())


def graphs_of(path: Path) -> Graphs:
    """Return the graphs that a path's step replays; decline a step that is not the tree's."""
    graphs = getattr(path.step_rows, "__self__", None)
    if not isinstance(graphs, Graphs):
        raise Declined("the candidate has its own step, whose graphs are not visible")
    return graphs


def with_graphs(path: Path, **changed: Any) -> tuple[Path, Graphs]:
    """Return the path with new graphs of the same class, with another capture or bound."""
    old = graphs_of(path)
    new = type(old)(old.eager, **changed)
    return use_graphs(path, new), new


def use_graphs(path: Path, graphs: Graphs) -> Path:
    """Return the path whose steps and greedy runs replay these graphs."""
    return replace(path, step_rows=graphs.step_rows, greedy_rows=graphs.greedy_rows)


def slots_with_tokens(batch: BatchDriver) -> list[int]:
    """Return the live slots whose streams have tokens left."""
    return [s for s in batch.live if batch.fed[s] < len(batch.live[s].logits)]


def run_steps(batch: BatchDriver, draw: random.Random, times: int = 2) -> None:
    """Step every live slot that has tokens left, in a new order each time."""
    for _ in range(times):
        order = slots_with_tokens(batch)
        draw.shuffle(order)
        if order:
            batch.step(order)


def widths_change(batch: BatchDriver, draw: random.Random) -> None:
    """Step 3, 4, 2, 3, 1 and 4 rows: some graphs are new, some are replayed."""
    for count in (3, 4, 2, 3, 1, 4):
        slots = slots_with_tokens(batch)
        batch.step(draw.sample(slots, min(count, len(slots))))


def rows_permute(batch: BatchDriver, draw: random.Random) -> None:
    """Step the same slots in three other orders."""
    order = sorted(batch.live)
    for turned in (order[::-1], order[1:] + order[:1], order[2:] + order[:2]):
        batch.step(turned)


def slots_swap(batch: BatchDriver, draw: random.Random) -> None:
    """Exchange the state and the sequences of two slots between steps."""
    first, second = sorted(batch.live)[:2]
    states = [batch.engine.read_state(batch.pool, s) for s in (first, second)]
    batch.engine.write_state(batch.pool, first, states[1])
    batch.engine.write_state(batch.pool, second, states[0])
    live, fed = batch.live, batch.fed
    live[first], live[second] = live[second], live[first]
    fed[first], fed[second] = fed[second], fed[first]
    run_steps(batch, draw)


def a_slot_is_recycled(batch: BatchDriver, draw: random.Random, stream: SoloStream) -> None:
    """Free a slot, poison it, and start a new sequence there."""
    slot = sorted(batch.live)[1]
    batch.leave(slot)
    run_steps(batch, draw, 1)
    batch.poison(slot)
    batch.join(slot, stream)
    run_steps(batch, draw, 3)


def a_prefix_is_restored(batch: BatchDriver, draw: random.Random) -> None:
    """Save a slot's state, step on, write the state into another slot and continue from there."""
    source, target = sorted(batch.live)[0], sorted(batch.live)[-1]
    saved, fed = batch.engine.read_state(batch.pool, source), batch.fed[source]
    run_steps(batch, draw, 2)
    batch.leave(target)
    batch.engine.write_state(batch.pool, target, saved)
    batch.live[target], batch.fed[target] = batch.live[source], fed
    run_steps(batch, draw, 3)


def the_pool_moves(batch: BatchDriver, draw: random.Random) -> None:
    """Move every sequence into a new pool of more slots, and fill the old one with NaN."""
    old, batch.slots = batch.pool, batch.slots + 3
    batch.pool = batch.engine.new_pool(batch.slots, batch.capacity)
    for slot in batch.live:
        batch.engine.write_state(batch.pool, slot, batch.engine.read_state(old, slot))
    for slot in range(batch.slots - 3):
        state = batch.engine.read_state(old, slot)
        batch.engine.write_state(old, slot, {name: torch.full_like(x, torch.nan)
                                             for name, x in state.items()})
    run_steps(batch, draw, 3)
    del old  # alive until here, so that a stale address points at NaN and not at freed memory


def a_chunk_comes_between(batch: BatchDriver, draw: random.Random) -> None:
    """Step two tokens of one row and one of each other row, which no graph runs, then go on."""
    order = sorted(batch.live)
    batch.step(order, [2] + [1] * (len(order) - 1))
    run_steps(batch, draw)


def on_another_stream(batch: BatchDriver, draw: random.Random) -> None:
    """Step on another stream, then on the current one again."""
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        run_steps(batch, draw)
    torch.cuda.current_stream().wait_stream(other)
    run_steps(batch, draw)


def find_event(name: str, model: Any) -> Event:
    """Return the event of a name in the contract."""
    if name == "a_slot_is_recycled":
        return partial(a_slot_is_recycled, stream=oracle_stream(model, 300, 1, 4))
    event: Event = globals()[name]
    return event


def failing_capture(at: str) -> Any:
    """Return a capture that fails `before` the run or `after` it."""
    def capture(path: Path, run: Callable[[Path], Tensor],
                tail: Callable[[Tensor], None]) -> tuple[Callable[[], None], Tensor]:
        if at == "after":
            record(path, run, tail)
        raise RuntimeError("operation not permitted when stream is capturing")

    return capture
