"""What P8 changes: a decode step replays a graph of its width, whose inputs are slot pointers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine import ops
from engine.path import Path
from engine.state import to_device
from engine.weights import Weight
from phases.p6_batched_attention import increment as before
from phases.p8_decode_graph.kernel_graphs import Graphs


def path(graphs: bool = True) -> Path:
    """Return the predecessor's path with its decode steps as graphs, or eager if asked for."""
    eager = replace(before.path(), name="p8", embed=embed)
    if not graphs:
        return eager
    kept = Graphs(eager)
    return replace(eager, step_rows=kept.step_rows, greedy_rows=kept.greedy_rows)


def embed(weight: Weight, tokens: Sequence[int] | Tensor, out: Tensor) -> None:
    """Write the dequantised rows of `tokens`, ids of the host or a graph's input, into `out`.

    On a device it gathers them there, so that a prompt does not wait for the host to unpack them.
    """
    ids = torch.as_tensor(tokens)
    if out.is_cuda:
        from phases.p8_decode_graph.kernel_embed import embed as gather
        gather(weight, to_device(ids, out.device), out)
    else:
        ops.embed(weight, ids.tolist(), out)
