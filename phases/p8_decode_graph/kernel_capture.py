"""A CUDA graph of a step, captured on a stream of its own after one warm run there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.path import Path


class Captures:
    """Captures graphs that share one pool of memory, since no two replay at a time."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._memory: Any = None
        self.nbytes = 0
        """Bytes of device memory that captures have set aside; a dropped graph's are used again."""

    def __call__(self, path: Path, run: Callable[[Path], Tensor], tail: Callable[[Tensor], None],
                 ) -> tuple[Callable[[], None], Tensor]:
        """Capture a run and its tail; return what replays it, and the tensor that it writes."""
        stream = self._stream = self._stream or torch.cuda.Stream()
        memory = self._memory = self._memory or torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles, and makes whatever is made once a stream
            tail(run(path))
        torch.cuda.current_stream().wait_stream(stream)
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved()
        with torch.cuda.graph(graph, pool=memory, stream=stream,
                              capture_error_mode="thread_local"):
            out = run(path)
            tail(out)
        self.nbytes += max(0, torch.cuda.memory_reserved() - before)
        return graph.replay, out
