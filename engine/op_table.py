"""Which kernel runs an op: one table for each phase, selected by the device of the output.

A kernel is named by its module, so that Triton and NVRTC are imported when a kernel first runs:

    op = op_table(__name__)
    conv_step = op(reference.conv_step, triton="kernel_conv.conv_step",
                   cuda="kernel_gdn_cuda.conv_step")

Tensors of the CPU go to the reference. Tensors of a device go to CUDA C++ where there is some, else
to Triton; so do tensors of the CPU while a device is emulated. The tests of the tier `interpret`
ask for the Triton kernel by name (`Op.on`), since the interpreter is too slow for complete steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from engine.emulate import on_device
from engine.quantised import rows_of

TIERS = ("cpu", "interpret", "cuda")
"""The tiers for which an op can have its own kernel."""
Function = Callable[..., Any]
Kernel = str | Function
"""`module.function` in the package of the table, or the function itself."""
F = TypeVar("F", bound=Function)


@dataclass(frozen=True)
class Op:
    """An op of a path: a PyTorch function and its kernels; each call runs one of them."""

    reference: Function
    """The op in plain PyTorch, for tensors of the CPU."""
    triton: Kernel | None = None
    """The op in Triton, for Triton's interpreter and for a device without `cuda`."""
    cuda: Kernel | None = None
    """The op in CUDA C++."""
    package: str = ""
    """The package in which kernels are named."""
    quantised: bool = False
    """Whether the op takes `QuantisedActivations` too in place of rows."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Run the op on the device of its output: the last argument, or the first of that list."""
        out = args[-1][0] if isinstance(args[-1], list | tuple) else args[-1]
        if on_device(out):
            return self.on("cuda")(*args, **options)
        return self.on("cpu")(*(map(rows_of, args) if self.quantised else args), **options)

    def on(self, tier: str) -> Function:
        """Return the function that a tier runs; its module is imported now."""
        return loaded(self.kernel(tier), self.package, tier)

    def kernel(self, tier: str) -> Kernel:
        """Return the function that a tier runs, or its name."""
        if tier == "cuda" and self.cuda is not None:
            return self.cuda
        return self.reference if tier == "cpu" or self.triton is None else self.triton

    def name(self, tier: str) -> str:
        """Return the dotted name of the function that a tier runs."""
        kernel = self.kernel(tier)
        return f"{self.package}.{kernel}" if isinstance(kernel, str) else name_of(kernel, tier)


@dataclass(frozen=True)
class Fused:
    """An op that runs other ops of its path, with kernels that do all their work at once.

    The kernels replace exactly the ops in `parts`. A path with another op, a candidate's for
    example, runs its own ops one after another.
    """

    reference: Function
    """The op in plain PyTorch; its first arguments are the functions that it runs."""
    parts: tuple[Function, ...]
    """The ops that the kernels replace."""
    together: Op
    """The op for these parts."""

    def __call__(self, *args: Any) -> Any:
        """Run the op with the functions that are its first arguments."""
        count = len(self.parts)
        return self.of(*args[:count])(*args[count:])

    def of(self, *parts: Function) -> Function:
        """Return the op for a path with these parts; callers omit them from its arguments."""
        replaceable = all(a is b for a, b in zip(parts, self.parts, strict=True))
        return self.together if replaceable else partial(self.reference, *parts)

    def on(self, tier: str) -> Function:
        """Return the function that a tier runs for the op's own parts; callers omit the parts."""
        return self.together.on(tier)

    def name(self, tier: str) -> str:
        """Return the dotted name of the function that a tier runs for the op's own parts."""
        return self.together.name(tier)


@dataclass(frozen=True, eq=False)
class Choice:
    """Ops of one kind by the arithmetic of the matrix, which is the first argument of each."""

    ops: Mapping[str, Op]

    def __call__(self, *args: Any) -> Any:
        """Run the op of the matrix's arithmetic."""
        return self.ops[args[0].arithmetic](*args)

    def on(self, tier: str) -> Function:
        """Return a function that runs the op of the matrix's arithmetic as a tier does."""
        def run(*args: Any) -> Any:
            return self.ops[args[0].arithmetic].on(tier)(*args)

        return run

    def name(self, tier: str) -> str:
        """Return the dotted names of the functions that a tier runs."""
        return " or ".join(dict.fromkeys(op.name(tier) for op in self.ops.values()))


def op_table(module: str) -> Callable[..., Op]:
    """Return the constructor of ops whose kernels are named in the package of a module."""
    return partial(Op, package=module.rpartition(".")[0])


def fused(op: Callable[..., Op], reference: Function, *parts: Function,
          triton: Kernel | None = None, cuda: Kernel | None = None,
          quantised: bool = False) -> Fused:
    """Return an op that runs others, with kernels that do the work of all."""
    return Fused(reference, parts, op(partial(reference, *parts), triton=triton, cuda=cuda,
                                      quantised=quantised))


def runs(table: Choice) -> Callable[[F], F]:
    """Mark a function with the table whose kernels it runs, so that `name_of` finds them."""
    def marked(function: F) -> F:
        function.__dict__["table"] = table
        return function

    return marked


def of_parts(op: Function, *parts: Function) -> Function:
    """Return an op that runs others, for a path with these parts."""
    return op.of(*parts) if isinstance(op, Fused) else partial(op, *parts)


def of_activations(op: Function) -> Function:
    """Return a product that also accepts `QuantisedActivations` where `op` accepts only rows."""
    if isinstance(op, Op) and op.quantised:
        return op

    def run(*args: Any) -> Any:
        return op(*map(rows_of, args))

    return run


def on_tier(op: Function, tier: str) -> Function:
    """Return what a tier runs of an op; a function without a table is the same on every tier."""
    return op.on(tier) if isinstance(op, Op | Fused | Choice) else op


def loaded(kernel: Kernel, package: str, tier: str) -> Function:
    """Return the function that a table names."""
    if not isinstance(kernel, str):
        return on_tier(kernel, tier)
    module, _, name = kernel.rpartition(".")
    place = f"{package}.{module}"
    found: Function = getattr(sys.modules.get(place) or import_module(place), name)
    return found


def name_of(function: Function, tier: str) -> str:
    """Return the dotted name of what a tier runs of a function or an op."""
    function = getattr(function, "table", function)
    if isinstance(function, Op | Fused | Choice):
        return function.name(tier)
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
