"""The unpinned baseline: what nobody pinned must drift, or equal rows would prove nothing.

A pass says that rows keep their bits in a batch. It says so only of inputs on which a careless
product loses them: rows of zeros, or of one term, are the same in any order. So where rows are
held to what they get alone, a product whose sums follow the width of the batch is run on the same
rows first, and where it never parts from itself the case is UNMEASURABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from falsifiers.judging.errors import Unmeasurable
from falsifiers.judging.judge import Judge, as_bits

Product = Callable[[Tensor, Tensor], Tensor]
WIDTHS = 3
"""How many of a case's widths are looked at, the narrowest first."""


def width_dependent_product(weight: Tensor, x: Tensor) -> Tensor:
    """Return the product f32[m, N] of rows x f32[m, K], K cut into more parts for more rows."""
    parts = min(len(x), 4)
    step = -(-x.shape[1] // parts)
    total = torch.zeros(len(x), len(weight))
    for some, of in zip(x.split(step, 1), weight.split(step, 1), strict=True):
        total += (some.unsqueeze(1) * of).cumsum(-1)[..., -1]
    return total


def check_negative_control(judge: Judge, weight: Tensor, x: Tensor, widths: Sequence[int],
               product: Product = width_dependent_product) -> None:
    """Hold that an unpinned product of these rows depends on the width, as one in use would.

    A product of fewer than three terms has one order alone and is let pass; `weight` is
    f32[N, K], a few of its rows are enough.
    """
    wide = [m for m in sorted(widths) if m > 1][:WIDTHS]
    if not wide or x.shape[1] < 3:
        return
    weight, x = weight.float().cpu(), x.float().cpu()
    alone = torch.cat([product(weight, row) for row in x[:wide[-1]].split(1)])
    drifts = [m for m in wide if not torch.equal(as_bits(product(weight, x[:m])),
                                                 as_bits(alone[:m]))]
    if not drifts:
        raise Unmeasurable(f"a product whose sums follow the width gives these rows the same bits "
                           f"at m = {', '.join(map(str, wide))} as alone, so that a pass would "
                           f"say nothing of them")
    judge.engaged(unpinned_product_drifts_at=drifts)
