"""How far a server serializes: wall time against one request alone, taken apart into two causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any


def decompose(c: int, walls: Mapping[int, Sequence[float]], fast: Sequence[float],
              tokens: Mapping[int, int]) -> dict[str, Any] | None:
    """Return the indices of a width from medians over replicates, None if a part is missing.

    `walls` holds the seconds of every arm by its width, `fast` those of the reference, and
    `tokens` how many tokens an arm brought. The serialization index is 1 for a server that
    batches perfectly and c for one that serves its requests in turns; it is the product of the
    path penalty (what the batched path costs one request) and the scaling index (what the other
    requests cost).
    """
    if not fast or not walls.get(1) or not walls.get(c) or not tokens.get(1) or not tokens.get(c):
        return None
    alone, batched, wide = median(fast), median(walls[1]), median(walls[c])
    if min(alone, batched, wide) <= 0:
        return None
    return {"serialization_index": wide / alone, "path_penalty": batched / alone,
            "scaling_index": wide / batched,
            "token_index": c * (tokens[1] / batched) / (tokens[c] / wide),
            "agg_tok_s": tokens[c] / wide, "replicates": len(walls[c])}


def add_indices(bands: Sequence[dict[str, Any]], fast: Sequence[float]) -> None:
    """Give every band that has a speed its indices, as far as they are measured.

    A band whose correctness is not shown has no walls, and so gets none.
    """
    timed = [band for band in bands if band.get("wall_s")]
    walls = {band["c"]: band["wall_s"] for band in timed}
    tokens = {band["c"]: band["tokens"] for band in timed}
    for band in timed:
        found = decompose(band["c"], walls, fast, tokens)
        if found is not None:
            band["index"] = {key: round(value, 4) for key, value in found.items()}
