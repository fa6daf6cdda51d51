"""Activations with their quantisation, computed in the same launch.

An exact product multiplies integers. A fused op of a path returns `QuantisedActivations`, and the
step passes them to the product that follows, which need not quantise the rows again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class QuantisedActivations:
    """Activations f32[t, ...] and their integers and scales, in the layout of the kernels."""

    values: Tensor
    _limbs: Any
    _version: int

    @staticmethod
    def of(values: Tensor, limbs: Any) -> QuantisedActivations:
        """Return activations that one launch has just written, with their quantisation."""
        tracked = not values.is_inference()  # torch counts no writes to an inference tensor
        return QuantisedActivations(values, limbs if tracked else None,
                                    values._version if tracked else 0)

    @property
    def rows(self) -> Tensor:
        """The activations, f32[t, K]."""
        return self.values.flatten(1)

    def take(self) -> Any:
        """Return the quantisation on the first call, or None if torch changed the values.

        Consume once: a kernel may overwrite the buffer without changing torch's version counter,
        and the quantisation would be stale.
        """
        limbs, self._limbs = self._limbs, None
        return limbs if limbs is not None and self._version == self.values._version else None


Activations = Tensor | QuantisedActivations


def rows_of(x: Any) -> Any:
    """Return the rows of quantised activations, or any other argument of a product as it is."""
    return x.rows if isinstance(x, QuantisedActivations) else x
