"""Negative control: a product that depends on the batch width must differ on a case's inputs.

A case that compares rows of a batch with single rows can only fail on inputs for which the order
of a sum matters. Rows of zeros, or of one term, give the same bits in any order. The case
therefore runs a product whose sums depend on the batch width on its rows. If that product gives
identical bits at every width, the case is UNMEASURABLE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from falsifiers.judging.errors import Unmeasurable
from falsifiers.judging.judge import Judge, as_bits

Product = Callable[[Tensor, Tensor], Tensor]
WIDTHS = 3
"""The number of a case's widths to try, the narrowest first."""


def width_dependent_product(weight: Tensor, x: Tensor) -> Tensor:
    """Return the product f32[m, N] of rows x f32[m, K]; K is split into min(m, 4) chunks."""
    step = -(-x.shape[1] // min(len(x), 4))
    total = torch.zeros(len(x), len(weight))
    for chunk, weights in zip(x.split(step, 1), weight.split(step, 1), strict=True):
        total += (chunk.unsqueeze(1) * weights).cumsum(-1)[..., -1]
    return total


def check_negative_control(judge: Judge, weight: Tensor, x: Tensor, widths: Sequence[int],
                           product: Product = width_dependent_product) -> None:
    """Check that a width-dependent product differs on rows x f32[m, K] at one of the widths.

    `weight` is f32[N, K]; a few rows are enough. Inputs with K < 3 are not checked, since their
    sums have one order. Raises `Unmeasurable` if the product differs at no width.
    """
    wide = [m for m in sorted(widths) if m > 1][:WIDTHS]
    if not wide or x.shape[1] < 3:
        return
    weight, x = weight.float().cpu(), x.float().cpu()
    single = torch.cat([product(weight, row) for row in x[:wide[-1]].split(1)])
    drifts = [m for m in wide if not torch.equal(as_bits(product(weight, x[:m])),
                                                 as_bits(single[:m]))]
    if not drifts:
        raise Unmeasurable(f"negative control failed: a width-dependent product gives identical "
                           f"bits on these inputs at m = {', '.join(map(str, wide))}, so this "
                           f"case cannot detect one; use other inputs")
    judge.engaged(unpinned_product_drifts_at=drifts)
