"""Figures of speed as they are kept beside the receipts: none without its conditions.

`gemv.json` holds times of single products, `step.json` times of whole decode steps; a time stands
in the latter only for a step whose bits were compared just before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from falsifiers.gate.receipts import FOLDER
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.verdict import Record

PER_SLOT = ("conv_step", "gates", "delta_step", "attend")
"""Ops with state, which P4 leaves to later phases and its goal leaves out."""
Figures = TypeVar("Figures", bound="BenchmarkRecord")


class BitsDifferError(Exception):
    """What was to be timed gave other bits than it should; the message says where."""


class TimeRange(Record):
    """A time with the least and the most that were seen."""

    fastest: float = Field(gt=0)
    slowest: float = Field(gt=0)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.fastest > self.slowest:
            raise ValueError("the fastest run is slower than the slowest")
        return self


class ProductTime(TimeRange):
    """One measured product."""

    name: str
    kind: str
    rows: int
    columns: int
    m: int
    microseconds: float
    """Median."""
    floor: float
    """Microseconds to read the file's bytes once."""


class BenchmarkRecord(Record):
    """What figures were measured with and on."""

    device: str
    torch: str
    bandwidth_tb_s: float = Field(gt=0)
    """Read bandwidth found in the same run."""
    measured: str = ""
    """The day, `2026-01-31`, for figures that are kept."""
    versions: dict[str, str] = Field(default_factory=dict)
    digest: str = ""
    """What `digest_of` returned for the kernels that were measured."""


class ProductTimes(BenchmarkRecord):
    """Times of single products, activations already quantised."""

    quantize_m8_us: float
    """Microseconds to quantise eight rows, shared by products that read the same ones."""
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
    """One measured step: m rows of one token each, every slot's cache `context` tokens long."""

    path: str
    m: int = Field(gt=0)
    context: int = Field(gt=0)
    milliseconds: float = Field(gt=0)
    """Median, from the call until the host has each row's next token."""
    steps: int = Field(gt=0)
    """How many were timed."""
    floor: float
    """Milliseconds to read weights and caches once, and to read and write recurrent state."""
    equal_values: int = Field(gt=0)
    """Logits, tokens and state values of this very step that equal the looped path's."""
    clock: Literal["device", "host"] = "device"
    """Where the split was measured: kernels' own time, or time on the host between ops."""
    split: dict[str, float] = Field(default_factory=dict)
    """Milliseconds by op, glue before an op counted with it; empty where it was left out.

    Products that are made together count as the first of them.
    """
    kernels: int = 0
    """Kernels that ran on the device in one step."""
    launches: int = 0
    """Calls by which the host started them."""
    kernels_a_layer: dict[str, float] = Field(default_factory=dict)
    """Kernels by kind of layer, for one layer of that kind; `outside` counts what is in none."""

    @property
    def tokens_a_second(self) -> float:
        """Tokens of all rows."""
        return self.m * 1e3 / self.milliseconds

    @property
    def without_per_slot(self) -> float:
        """Milliseconds of the split without the ops with state."""
        return sum(ms for op, ms in self.split.items() if op not in PER_SLOT)


class PrefillTime(TimeRange):
    """One measured prompt, given whole in one step."""

    path: str
    tokens: int = Field(gt=0)
    seconds: float = Field(gt=0)
    """Median."""
    runs: int = Field(gt=0)
    equal_steps: int = Field(gt=0)
    """Tokens of the prompt after which state and logits equal those of single steps."""

    @property
    def tokens_a_second(self) -> float:
        """Tokens of the prompt."""
        return self.tokens / self.seconds


class StepTimes(BenchmarkRecord):
    """Times of whole steps of one model file."""

    model: str
    """Its shape in words."""
    weight_bytes: int
    """Bytes of every matrix and vector, each once."""
    state_bytes: int
    """Bytes of one slot's recurrent state."""
    cache_bytes: int
    """Bytes of one token's keys and values."""
    figures: tuple[StepTime, ...]
    prefill: tuple[PrefillTime, ...] = ()
    left_out: tuple[str, ...] = ()
    """What was asked for and not measured, and why."""

    @model_validator(mode="after")
    def _once(self) -> Self:
        places = [(f.path, f.m, f.context) for f in self.figures]
        if len(set(places)) < len(places):
            raise ValueError("a path, width and context stand twice among the figures")
        return self

    def at(self, path: str, m: int, context: int) -> StepTime | None:
        """Return one figure, or None where there is none."""
        return next((f for f in self.figures if (f.path, f.m, f.context) == (path, m, context)),
                    None)

    def verdicts(self) -> list[str]:
        """Return what the figures say of S7 and of P4's goal, by path and context."""
        told = []
        for path, context in dict.fromkeys((f.path, f.context) for f in self.figures):
            one, four, eight = (self.at(path, m, context) for m in (1, 4, 8))
            where = f"{path}, context {context:,}"
            if one and four:
                rate = one.milliseconds / four.milliseconds
                told.append(f"{where}: a request decodes at m = 4 at {rate:.2f} of its rate at "
                            f"m = 1; S7 asks for 0.50: {'holds' if rate >= 0.5 else 'is broken'}")
            if one and eight and one.split and eight.split:
                ratio = eight.without_per_slot / one.without_per_slot
                told.append(f"{where}: without {', '.join(PER_SLOT)}, m = 8 takes {ratio:.2f} "
                            f"times m = 1 on the {eight.clock}; P4's goal is 1.50: "
                            f"{'reached' if ratio <= 1.5 else 'not reached'}")
        return told


def load_steps(root: Path) -> list[StepTimes]:
    """Read the kept figures of steps of every device; `SuiteError` names a broken file."""
    return [_read_records(path, StepTimes) for path in sorted((root / FOLDER).glob("*/step.json"))]


def load_products(root: Path) -> list[ProductTimes]:
    """Read the kept figures of products of every device; `SuiteError` names a broken file."""
    return [
        _read_records(path, ProductTimes) for path in sorted((root / FOLDER).glob("*/gemv.json"))
    ]


def _read_records(path: Path, kind: type[Figures]) -> Figures:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path}: holds no figures: {str(error).splitlines()[0]}") from None
