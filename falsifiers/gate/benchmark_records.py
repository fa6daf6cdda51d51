"""Records of benchmarks, stored next to the receipts with their conditions.

`gemv.json` has times of single products, `step.json` times of decode steps. A step is timed only
after its bits were compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from falsifiers.gate.receipts import FOLDER
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.verdict import Record

PER_SLOT = ("conv_step", "gates", "delta_step", "attend")
"""Ops with state. P4's goal excludes them, since later phases batch them."""
Figures = TypeVar("Figures", bound="BenchmarkRecord")


class BitsDifferError(Exception):
    """The benchmarked code gives wrong bits; the message says where."""


class TimeRange(Record):
    """A time with the fastest and the slowest run."""

    fastest: float = Field(gt=0)
    slowest: float = Field(gt=0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.fastest > self.slowest:
            raise ValueError("the fastest run is slower than the slowest")
        return self


class ProductTime(TimeRange):
    """The time of one product."""

    name: str
    kind: str
    rows: int
    columns: int
    m: int
    microseconds: float
    """Median."""
    floor: float
    """Microseconds to read the weight's bytes once."""


class BenchmarkRecord(Record):
    """The conditions of a benchmark."""

    device: str
    torch: str
    bandwidth_tb_s: float = Field(gt=0)
    """Read bandwidth measured in the same run."""
    measured: str = ""
    """The day, `2026-01-31`, for stored figures."""
    versions: dict[str, str] = Field(default_factory=dict)
    digest: str = ""
    """The `phase_digest` of the measured kernels."""


class ProductTimes(BenchmarkRecord):
    """Times of single products, activations already quantised."""

    quantize_m8_us: float
    """Microseconds to quantise eight rows; products with the same input share it."""
    figures: tuple[ProductTime, ...]


class OpTime(TimeRange):
    """One measured op of a recurrent layer."""

    op: str
    m: int
    tokens: int
    """Tokens of each row."""
    microseconds: float
    """Median."""
    floor: float
    """Microseconds to read and write what the op must move."""


class OpTimes(BenchmarkRecord):
    """Times of the ops of a recurrent layer."""

    figures: tuple[OpTime, ...]


class StepTime(TimeRange):
    """The time of one step: m rows of one token, each with `context` cached tokens."""

    path: str
    m: int = Field(gt=0)
    context: int = Field(gt=0)
    milliseconds: float = Field(gt=0)
    """Median, from the call until the host has the next token of each row."""
    steps: int = Field(gt=0)
    """The number of timed steps."""
    floor: float
    """Milliseconds to read weights and caches once and to read and write recurrent state."""
    equal_values: int = Field(gt=0)
    """The number of logits, tokens and state values of this step equal to the looped path's."""
    clock: Literal["device", "host"] = "device"
    """How the split was measured: time of kernels, or time on the host between ops."""
    split: dict[str, float] = Field(default_factory=dict)
    """Milliseconds by op, including glue before it; empty if not measured.

    Products in one launch count as the first of them.
    """
    kernels: int = 0
    """The number of kernels on the device in one step."""
    launches: int = 0
    """The number of launches by the host."""
    kernels_a_layer: dict[str, float] = Field(default_factory=dict)
    """Kernels of one layer by its kind; `outside` counts kernels outside of layers."""

    @property
    def tokens_a_second(self) -> float:
        """Tokens of all rows."""
        return self.m * 1e3 / self.milliseconds

    @property
    def without_per_slot(self) -> float:
        """Milliseconds of the split, excluding ops with state."""
        return sum(ms for op, ms in self.split.items() if op not in PER_SLOT)


class PrefillTime(TimeRange):
    """The time of a prompt that runs in one step."""

    path: str
    tokens: int = Field(gt=0)
    seconds: float = Field(gt=0)
    """Median."""
    runs: int = Field(gt=0)
    equal_steps: int = Field(gt=0)
    """The number of tokens whose state and logits equal those of single steps."""

    @property
    def tokens_a_second(self) -> float:
        """Tokens of the prompt."""
        return self.tokens / self.seconds


class StepTimes(BenchmarkRecord):
    """Times of steps of one model file."""

    model: str
    """Its shape in words."""
    weight_bytes: int
    """Bytes of all weights."""
    state_bytes: int
    """Bytes of one slot's recurrent state."""
    cache_bytes: int
    """Bytes of one token's keys and values."""
    figures: tuple[StepTime, ...]
    prefill: tuple[PrefillTime, ...] = ()
    left_out: tuple[str, ...] = ()
    """What was requested and not measured, with the reason."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        places = [(f.path, f.m, f.context) for f in self.figures]
        if len(set(places)) < len(places):
            raise ValueError("two figures have the same path, m and context")
        return self

    def at(self, path: str, m: int, context: int) -> StepTime | None:
        """Return one figure, or None."""
        return next((f for f in self.figures if (f.path, f.m, f.context) == (path, m, context)),
                    None)

    def verdicts(self) -> list[str]:
        """Return sentences on S7 and on P4's goal, by path and context."""
        sentences = []
        for path, context in dict.fromkeys((f.path, f.context) for f in self.figures):
            one, four, eight = (self.at(path, m, context) for m in (1, 4, 8))
            where = f"{path}, context {context:,}"
            if one and four:
                rate = one.milliseconds / four.milliseconds
                sentences.append(f"{where}: a request decodes at m = 4 at {rate:.2f} of its rate "
                                 f"at m = 1; S7 asks for 0.50: "
                                 f"{'holds' if rate >= 0.5 else 'is broken'}")
            if one and eight and one.split and eight.split:
                ratio = eight.without_per_slot / one.without_per_slot
                sentences.append(f"{where}: without {', '.join(PER_SLOT)}, m = 8 takes "
                                 f"{ratio:.2f} times m = 1 on the {eight.clock}; P4's goal is "
                                 f"1.50: {'reached' if ratio <= 1.5 else 'not reached'}")
        return sentences


def load_steps(root: Path) -> list[StepTimes]:
    """Read the stored times of steps of every device; raise `SuiteError` for a broken file."""
    return [_read_records(path, StepTimes) for path in sorted((root / FOLDER).glob("*/step.json"))]


def load_products(root: Path) -> list[ProductTimes]:
    """Read the stored times of products of every device; raise `SuiteError` for a broken file."""
    return [_read_records(path, ProductTimes)
            for path in sorted((root / FOLDER).glob("*/gemv.json"))]


def _read_records(path: Path, kind: type[Figures]) -> Figures:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise SuiteError(f"{path}: is not a benchmark record: {reason}") from None
