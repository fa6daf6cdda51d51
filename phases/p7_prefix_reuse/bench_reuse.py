"""Benchmark: a chat turn after a long reused prefix, and a cold start of that prefix."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from engine import testmodels
from falsifiers.judging.batch_driver import make_prompt
from phases.p2_engine_serve.increment import Limits, Request, Row
from phases.p7_prefix_reuse.increment import PrefixEngine, prefixes

PREFIX, TURN, CHUNK = 2_000, 20, 64


def time_prefill(engine: PrefixEngine, tokens: list[int]) -> tuple[float, int]:
    """Return the seconds from a request's admission to its first token, and the tokens reused."""
    started = time.perf_counter()
    seat = engine.add_slot(Request("r", tuple(tokens), 1))
    for done in range(seat.reused, len(tokens), CHUNK):
        engine.decode_step([Row(seat.slot, min(CHUNK, len(tokens) - done))])
    seconds = time.perf_counter() - started
    engine.recycle_slot(seat.slot)
    return seconds, seat.reused


def test_chat_turn_behind_a_long_prefix(path: Any, benchmark: Any) -> None:
    torch.set_num_threads(1)
    model = testmodels.load("nano")
    engine = PrefixEngine(model, path, Limits(1, PREFIX + TURN + 8),
                          prefixes(model, path, 1 << 30))
    first = make_prompt(1, PREFIX, model.config.vocab)
    turn = [*first, *make_prompt(2, TURN, model.config.vocab)]
    cold, none = time_prefill(engine, first)
    warm: list[float] = []

    def again() -> None:
        seconds, reused = time_prefill(engine, turn)
        assert (none, reused) == (0, PREFIX)
        warm.append(seconds)

    benchmark.pedantic(again, rounds=5)
    middle = median(warm)
    benchmark.extra_info.update(prefix=PREFIX, turn=TURN, chunk=CHUNK, path=path.name,
                                cold_seconds=round(cold, 3), warm_seconds=round(middle, 3),
                                percent_of_cold=round(100 * middle / cold, 2))
    print(f"\na turn of {TURN} tokens after {PREFIX} on nano, path {path.name}, one thread: "
          f"{middle:.3f} s, cold {cold:.3f} s, {100 * middle / cold:.1f} %")
