"""Captures a step as a CUDA graph, on a separate stream and after one warm-up run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.path import Path


class Captures:
    """Captures graphs that share one memory pool; two graphs never replay at the same time."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._memory: Any = None
        self.nbytes = 0
        """Bytes of device memory that captures reserved; memory of a dropped graph is reused."""

    def __call__(self, path: Path, run: Callable[[Path], Tensor], tail: Callable[[Tensor], None],
                 ) -> tuple[Callable[[], None], Tensor]:
        """Capture `run` and `tail`; return the replay function and the output tensor."""
        stream = self._stream = self._stream or torch.cuda.Stream()
        memory = self._memory = self._memory or torch.cuda.graph_pool_handle()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels, allocates per-stream buffers
            tail(run(path))
        torch.cuda.current_stream().wait_stream(stream)
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved()
        with torch.cuda.graph(graph, pool=memory, stream=stream,
                              capture_error_mode="thread_local"):
            out = run(path)
            tail(out)
        self.nbytes += max(0, torch.cuda.memory_reserved() - before)
        return graph.replay, out
