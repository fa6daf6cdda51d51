"""What P8 changes: a decode step replays a graph of its width, whose inputs are slot pointers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine import ops
from engine.op_table import op_table
from engine.path import Path
from engine.weights import Weight
from phases.p6_batched_attention import increment as before
from phases.p8_decode_graph.kernel_graphs import Graphs

op = op_table(__name__)


def path(graphs: bool = True) -> Path:
    """Return the predecessor's path with its decode steps as graphs, or eager if asked for."""
    eager = replace(before.path(), name="p8", embed=EMBED)
    if not graphs:
        return eager
    kept = Graphs(eager)
    return replace(eager, step_rows=kept.step_rows, greedy_rows=kept.greedy_rows)


def embed(weight: Weight, tokens: Sequence[int] | Tensor, out: Tensor) -> None:
    """Write the dequantised rows of `tokens`, ids of the host or a graph's input, into `out`."""
    ops.embed(weight, torch.as_tensor(tokens).tolist(), out)


EMBED = op(embed, triton="kernel_embed.embed")
"""On a device rows are gathered there, so that a prompt does not wait for the host."""
