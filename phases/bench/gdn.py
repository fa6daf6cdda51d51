"""How long the recurrent ops of a 4B layer take on a device, beside the floor of the same run.

A figure is the median of graph replays over as many layers' states as do not fit the L2 cache, in
microseconds a layer; the floor is the bytes that must be read and written over the bandwidth
measured just before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from engine.config import CONV_TAPS, STATE_SIZE
from engine.state import Ints, Refs
from phases.p5_batched_gdn import kernel_gdn_cuda as kernels

KEY_HEADS, VALUE_HEADS = 16, 32
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * STATE_SIZE
BYTES_BEYOND_CACHE = 400_000_000
Timer = Callable[[Callable[[], None]], tuple[float, float, float]]


@dataclass(frozen=True)
class OpTiming:
    """One measured op."""

    op: str
    m: int
    tokens: int
    """Tokens of each row."""
    microseconds: float
    floor: float
    fastest: float
    slowest: float


@dataclass(frozen=True)
class LayerInputs:
    """What several layers of m rows work on."""

    m: int
    tokens: int

    @property
    def layer_count(self) -> int:
        """Layers whose states do not fit a cache together."""
        return max(2, BYTES_BEYOND_CACHE // (self.m * VALUE_HEADS * STATE_SIZE * STATE_SIZE * 4))

    def make_states(self, *shape: int) -> list[Refs]:
        """Return small random states of every layer, their addresses on the device."""
        made = [torch.randn(self.m, *shape, device="cuda") * 0.1 for _ in range(self.layer_count)]
        plain = [Refs(whole, tuple(range(self.m))) for whole in made]
        return [Refs(refs.whole, refs.slots, refs.pointers) for refs in plain]

    def ops(self) -> dict[str, tuple[Callable[[Any], None], list[Refs] | None, int]]:
        """Return each op as a function of a layer's states, the states, and the bytes it needs."""
        t, counts = self.m * self.tokens, Ints((self.tokens,) * self.m)
        x, mixed = (torch.randn(t, CHANNELS, device="cuda") for _ in range(2))
        taps = torch.randn(CHANNELS, CONV_TAPS, device="cuda")
        q, k, v = (part.unflatten(1, (-1, STATE_SIZE)) for part in mixed.split(
            (KEY_HEADS * STATE_SIZE, KEY_HEADS * STATE_SIZE, VALUE_HEADS * STATE_SIZE), 1))
        a, b, g, beta = (torch.randn(t, VALUE_HEADS, device="cuda") for _ in range(4))
        decay, bias = -torch.rand(VALUE_HEADS, device="cuda"), torch.zeros(VALUE_HEADS,
                                                                           device="cuda")
        out, y = torch.empty(t, VALUE_HEADS, STATE_SIZE, device="cuda"), torch.empty_like(x)
        windows, states = (
            self.make_states(CHANNELS, CONV_TAPS - 1),
            self.make_states(VALUE_HEADS, STATE_SIZE, STATE_SIZE),
        )

        def conv(refs: Refs) -> None:
            kernels.conv_step(x, taps, refs, counts, y)

        def gates(refs: None) -> None:
            kernels.gates(a, b, decay, bias, g, beta)

        def delta(refs: Refs) -> None:
            kernels.delta_step(q, k, v, g, beta, refs, counts, out)

        def size(*tensors: Tensor) -> int:
            return sum(x.nbytes for x in tensors)

        return {"conv_step": (conv, windows, 2 * size(windows[0].whole, x) + size(taps)),
                "gates": (gates, None, 2 * size(a, b)),
                "delta_step": (delta, states, 2 * size(states[0].whole) + size(mixed, out))}


def measure(ms: Sequence[int], timed: Timer, bandwidth: float, tokens: int = 1,
            tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measure every op at every width; return figures with their conditions."""
    figures: list[OpTiming] = []
    for m in ms:
        made = LayerInputs(m, tokens)
        for name, (run, states, size) in made.ops().items():
            each: list[Any] = list(states) if states else [None] * made.layer_count

            def whole(run: Callable[[Any], None] = run,
                      each: list[Any] = each) -> None:
                for refs in each:
                    run(refs)

            middle, least, most = (time / made.layer_count for time in timed(whole))
            figures.append(OpTiming(name, m, tokens, middle, size / bandwidth * 1e6, least, most))
        mine = [f for f in figures if f.m == m]
        total, floor = sum(f.microseconds for f in mine), sum(f.floor for f in mine)
        tell(f"m={m}: " + ", ".join(f"{f.op} {f.microseconds:.2f} ({f.floor:.2f})" for f in mine)
             + f", all {total:.2f} us, {total / floor:.2f} of the floor")
    return {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "bandwidth_tb_s": bandwidth / 1e12, "figures": [asdict(figure) for figure in figures]}
