"""Real weights under P3's attack: a seeded sample of any GGUF file's tensors, as cases.

Of every type that the products know at least one tensor is drawn; of a tensor a stretch of rows.
Nothing of the model is looked at but its matrices, so its architecture does not matter.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from contracts.schema import Case, Tier
from engine.blocks import TYPES, Bytes, has_finite_scales
from engine.errors import InputError
from engine.gguf_file import GgufFile, TensorEntry, open_gguf
from engine.weights import EXACT, EXACT_KINDS, ORDERED
from falsifiers.gate.weight_sample import SampledTensor, SkippedTensors, WeightSample
from falsifiers.judging.errors import Declined, SuiteError, shorten_name

MAX_ROWS = 96
"""Rows of a tensor that are judged; a budget needs 64 outputs."""
FEW_ROWS = 4
"""Rows where each takes long: under the interpreter, and in Python integers."""
MAX_COLUMNS: dict[Tier, int] = {"cpu": 1 << 15, "interpret": 512, "cuda": 1 << 15}
"""Columns of a row that are judged: full blocks from the first one."""
BATCH_WIDTHS: dict[Tier, tuple[int, ...]] = {
    "cpu": (2, 3, 8, 17), "interpret": (3,), "cuda": (2, 3, 4, 8, 9, 16, 17, 33, 64)}
"""Every m at which rows are compared with the same rows run by themselves."""
UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_.=+-]")
open_cached = cache(open_gguf)


def sample(file: str, tensors: int, seed: int, named: Sequence[str] = ()) -> WeightSample:
    """Draw tensors of a file, or take those named; raise `InputError` when it cannot be used."""
    try:
        file.encode()
    except UnicodeEncodeError:
        raise InputError(f"{file}: a path that is not UTF-8 cannot be kept in a verdict") from None
    gguf = open_gguf(file, partly=True)
    able, left_out = _select_supported(gguf, seed)
    if named:
        unknown = next(
            (n for n in named if n not in gguf.tensors and n not in gguf.unsupported_tensors), None
        )
        if unknown is not None:
            raise InputError(f"{file} has no tensor {shorten_name(unknown)}")
        drawn = [one for one in able if one.tensor in named]
    else:
        drawn = _draw_tensors(able, tensors, seed)
    return WeightSample(
        file=file,
        seed=seed,
        sampled=tuple(drawn),
        not_drawn=len(able) - len(drawn),
        left_out=left_out,
        cases=tuple(_build_cases(file, drawn, seed)),
    )


def _select_supported(
    gguf: GgufFile, seed: int
) -> tuple[list[SampledTensor], tuple[SkippedTensors, ...]]:
    """Return the tensors that can be judged, in the file's order, and why others cannot."""
    able: list[SampledTensor] = []
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, kind in gguf.unsupported_tensors.items():
        reasons[f"of type {kind}, which P3 does not know"].append(name)
    gguf.check_size()
    for entry in gguf.tensors.values():
        if len(entry.shape) == 1:
            reasons["of one dimension: no matrix"].append(entry.name)
            continue
        rows = min(MAX_ROWS, len(entry.data))
        first = _hash_number(f"{seed} rows {entry.name}") % (len(entry.data) - rows + 1)
        if has_finite_scales(entry.kind, entry.data[first:first + rows]):
            able.append(SampledTensor(tensor=entry.name, kind=entry.kind, shape=entry.shape,
                                first=first, rows=rows))
        else:
            reasons["with values that are not finite"].append(entry.name)
    return able, tuple(SkippedTensors(why=why, tensors=len(names), example=names[0])
                       for why, names in reasons.items())


def _hash_number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _draw_tensors(able: Iterable[SampledTensor], count: int, seed: int) -> list[SampledTensor]:
    """Return `count` tensors, but one of each type at least, the first of each type ahead."""
    order = sorted(able, key=lambda one: _hash_number(f"{seed} {one.tensor}"))
    kinds: dict[str, SampledTensor] = {}
    for one in order:
        kinds.setdefault(one.kind, one)
    rest = [one for one in order if kinds[one.kind] is not one]
    return [*kinds.values(), *rest[:max(0, count - len(kinds))]]


def _build_cases(file: str, drawn: Sequence[SampledTensor], seed: int) -> Iterator[Case]:
    """Yield the cases of drawn tensors; the interpreter takes the first of each type alone."""
    seen: set[str] = set()
    for number, one in enumerate(drawn):
        plain = UNSAFE_CHARACTERS.sub("_", one.tensor)[:60]
        twin = any(
            UNSAFE_CHARACTERS.sub("_", other.tensor)[:60] == plain for other in drawn[:number]
        )
        label = f"weights-{plain}{f'-{number}' if twin else ''}-{one.kind}"
        parts = ["rowtwin gate --phase 3 --weights", shlex.quote(file), "--seed", str(seed)]
        if one.tensor.isprintable():
            parts += ["--tensor", shlex.quote(one.tensor)]
        for tier in BATCH_WIDTHS:
            if tier != "interpret" or one.kind not in seen:
                yield from _build_tensor_cases(
                    os.path.abspath(file), one, label, tier, " ".join(parts)
                )
        seen.add(one.kind)


def _build_tensor_cases(
    path: str, one: SampledTensor, label: str, tier: Tier, repro: str
) -> Iterator[Case]:
    block = TYPES[one.kind].weights
    rows = min(FEW_ROWS, one.rows) if tier == "interpret" else one.rows
    columns = min(one.shape[-1], MAX_COLUMNS[tier] // block * block)
    given = {"file": path, "tensor": one.tensor, "kind": one.kind, "first": one.first, "n": rows,
             "k": columns, "arithmetic": EXACT if one.kind in EXACT_KINDS else ORDERED}

    def case(falsifier: str, name: str, **more: object) -> Case:
        # as in the contract's table: Q4_K must be taken; few outputs are too few for a budget
        must = one.kind == "Q4_K" and (falsifier == "rows_equal_alone" or (
            falsifier == "products_are_true" and one.rows >= 64))
        return Case(phase="p3", falsifier=falsifier, tier=tier, name=name, quick=True,
                    must_claim=must, given={**given, **more}, repro=repro)

    for m in BATCH_WIDTHS[tier]:
        yield case("rows_equal_alone", f"{label}-m{m}", m=[m])
    yield case("products_are_true", label, flavours=["real"])
    if tier != "interpret":
        yield case("products_equal_integer_arithmetic", label, flavours=["real"],
                   n=min(FEW_ROWS, rows), k=min(columns, 4096))


def load_rows(case: Case, kind: str, n: int, k: int) -> Bytes:
    """Return the first n rows and k columns of what a case judges, as block bytes u8[n, bytes]."""
    gguf = open_cached(case["file"], partly=True)
    gguf.check_size()
    entry: TensorEntry | None = gguf.tensors.get(case["tensor"])
    first, size = case["first"], TYPES[kind].row_bytes(k)
    if entry is None or entry.kind != kind or entry.data.shape[1] < size:
        raise SuiteError(f"{case['file']} is not the file that cases were drawn from")
    data = entry.data[first:first + n, :size]
    if len(data) < n:
        raise Declined(f"{n} outputs are needed, but the tensor has {len(data)} rows")
    return data
