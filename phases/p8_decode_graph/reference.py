"""A graph in plain Python: the calls of a step's ops, remembered with their operands and run again.

Operands are the very tensors of the first run, so a call that remembers what it should look up
fails here as a captured launch does: state is found by the addresses in the inputs, lengths and
tokens are read from them at every replay, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from engine.path import Path
from engine.state import Ints


@dataclass
class Recording:
    """The calls of one run, in order."""

    calls: list[tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]] = field(
        default_factory=list)
    _inside: bool = False

    def of(self, path: Path) -> Path:
        """Return the path with every call of an op remembered as it runs."""
        ops = [f.name for f in fields(path) if f.name not in ("name", "step_rows", "greedy_rows")]
        noted: dict[str, Any] = {name: self._noted(getattr(path, name)) for name in ops}
        return replace(path, **noted)

    def _noted(self, op: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any, **options: Any) -> None:
            if self._inside:  # an op that calls others is one call
                op(*args, **options)
                return
            self.calls.append((op, args, options))
            self._inside = True
            try:
                op(*[_now(arg) for arg in args], **options)
            finally:
                self._inside = False
        return run

    def replay(self) -> None:
        """Run every call again."""
        self._inside = True
        for op, args, options in self.calls:
            op(*[_now(arg) for arg in args], **options)


def _now(operand: Any) -> Any:
    """Return what a host op takes: numbers that are an input are read from it now."""
    if isinstance(operand, Ints) and operand.device_copy is not None:
        return Ints(operand.device_copy.tolist())
    return operand


def capture(path: Path, run: Callable[[Path], Tensor], tail: Callable[[Tensor], None],
            ) -> tuple[Callable[[], None], Tensor]:
    """Run once and return what replays it, and the tensor that it writes.

    `tail` ends each run, given that tensor.
    """
    recording = Recording()
    out = run(recording.of(path))
    tail(out)

    def replay() -> None:
        recording.replay()
        tail(out)

    return replay, out
