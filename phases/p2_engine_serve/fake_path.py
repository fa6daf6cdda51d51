"""A decode path with almost free steps, for attacks on sampling and serving that need many.

It stores state where a model does: each token in its KV row, and a number that depends on all of
them in the recurrent state. Logits are noise seeded by that number. After a prompt that ends in
`mark` it emits the prompt again, token by token, and then the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.model import Model
from engine.path import Path, Rows, Sink
from engine.state import Pool

PRIME = 65521
"""The modulus of the number in the recurrent state; f32 represents every value below it."""
ECHO_LOGIT = 60.0


def make_fake_path(path: Path, mark: int, end: int) -> Path:
    """Return the path with cheap steps; `mark` starts an echo of the prompt and `end` ends it."""
    def step_rows(_: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
        return torch.stack([_row_logits(pool, slot, position, row_tokens, mark, end)
                            for slot, position, row_tokens in rows.spans(tokens)])

    return replace(path, name="fake", step_rows=step_rows)


def _row_logits(pool: Pool, slot: int, position: int, tokens: Sequence[int], mark: int,
                end: int) -> Tensor:
    number = next(iter(pool.delta.values()))[slot].flatten()[:1]
    kv_tokens = next(iter(pool.k.values()))[slot, :, 0, 0]
    kv_tokens[position:position + len(tokens)] = torch.tensor(tokens, dtype=torch.float32)
    value = int(number)
    for token in tokens:
        value = (31 * value + token + 7) % PRIME
    number.fill_(value)
    draw = torch.Generator().manual_seed(value)
    logits = 2 * torch.randn(pool.config.vocab, generator=draw)
    seen = [int(token) for token in kv_tokens[:position + len(tokens)].tolist()]
    if mark in seen:
        prompt = seen.index(mark)
        spoken = len(seen) - prompt - 1
        logits[seen[spoken] if spoken < prompt else end] += ECHO_LOGIT
    return logits
