"""How far a server serializes: wall time relative to one request, split into two causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any


def decompose(c: int, walls: Mapping[int, Sequence[float]], fast: Sequence[float],
              tokens: Mapping[int, int]) -> dict[str, Any] | None:
    """Return the indices of a width from medians over replicates, None if a time is missing.

    `walls` has the seconds of every arm by width, `fast` those of the reference, and `tokens`
    the tokens of an arm by width. The serialization index is 1 for a server that
    batches perfectly and c for one that serves its requests in turns; it is the product of the
    path penalty (what the batched path costs one request) and the scaling index (what the other
    requests cost).
    """
    if not fast or not walls.get(1) or not walls.get(c) or not tokens.get(1) or not tokens.get(c):
        return None
    solo, batched, wide = median(fast), median(walls[1]), median(walls[c])
    if min(solo, batched, wide) <= 0:
        return None
    return {"serialization_index": wide / solo, "path_penalty": batched / solo,
            "scaling_index": wide / batched,
            "token_index": c * (tokens[1] / batched) / (tokens[c] / wide),
            "agg_tok_s": tokens[c] / wide, "replicates": len(walls[c])}


def add_indices(bands: Sequence[dict[str, Any]], fast: Sequence[float]) -> None:
    """Add the indices to every band with a speed.

    A band whose correctness is not shown has no `wall_s`, and gets no index.
    """
    timed = [band for band in bands if band.get("wall_s")]
    walls = {band["c"]: band["wall_s"] for band in timed}
    tokens = {band["c"]: band["tokens"] for band in timed}
    for band in timed:
        found = decompose(band["c"], walls, fast, tokens)
        if found is not None:
            band["index"] = {key: round(value, 4) for key, value in found.items()}
