"""Times of steps as text: a table for each context, the split by op, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterator

from falsifiers.gate.benchmark_records import StepTime, StepTimes

HEADER = ("path", "m", "ms", "least", "most", "floor", "x floor", "tokens/s", "kernels", "launches")
MIN_SHARE = 0.005
"""An op with a smaller share of a step is counted under `others`."""


def report_lines(steps: StepTimes) -> Iterator[str]:
    """Yield the report line by line, conditions first."""
    speed = f"{1e3 * steps.bandwidth_tb_s:,.0f} GB/s read in this run"
    yield f"{steps.device}, torch {steps.torch}, {speed}"
    if steps.device.startswith("CPU"):
        yield "no CUDA device is usable here: these times only try the command"
    yield steps.model
    for context in dict.fromkeys(f.context for f in steps.figures):
        figures = [f for f in steps.figures if f.context == context]
        yield from ("", f"context {context:,}; every step equals the looped path's bit for bit")
        yield "".join(f"{name:>10}" for name in HEADER)
        yield from (step_row(f) for f in figures)
        yield from split_lines(figures)
    for f in steps.prefill:
        yield ""
        yield (f"{f.path}: a prompt of {f.tokens:,} tokens in {f.seconds:.3f} s "
               f"({f.fastest:.3f} to {f.slowest:.3f}), {f.tokens_a_second:,.0f} tokens/s; "
               f"the first {f.equal_steps} tokens equal single steps bit for bit")
    yield from ("", *steps.verdicts(), *(f"left out: {why}" for why in steps.left_out))


def step_row(f: StepTime) -> str:
    """Return one figure as a line of the table."""
    values = (f.path, f.m, f"{f.milliseconds:.3f}", f"{f.fastest:.3f}", f"{f.slowest:.3f}",
              f"{f.floor:.3f}", f"{f.milliseconds / f.floor:.1f}", f"{f.tokens_a_second:,.1f}",
              f.kernels or "-", f.launches or "-")
    return "".join(f"{value:>10}" for value in values)


def split_lines(figures: list[StepTime]) -> Iterator[str]:
    """Yield the milliseconds by op of every path, one column for each width."""
    for path in dict.fromkeys(f.path for f in figures):
        of_path = [f for f in figures if f.path == path and f.split]
        if not of_path:
            continue
        shown = [op for op in dict.fromkeys(op for f in of_path for op in f.split)
                 if any(f.split.get(op, 0.0) >= MIN_SHARE * sum(f.split.values()) for f in of_path)]
        yield f"{path}: ms by op on the {of_path[0].clock}"
        yield f"{'m':>24}" + "".join(f"{f.m:>10}" for f in of_path)
        for op in shown:
            yield f"{op:>24}" + "".join(f"{f.split.get(op, 0.0):>10.3f}" for f in of_path)
        rest = [sum(ms for op, ms in f.split.items() if op not in shown) for f in of_path]
        yield f"{'others':>24}" + "".join(f"{ms:>10.3f}" for ms in rest)
        yield f"{'all':>24}" + "".join(f"{sum(f.split.values()):>10.3f}" for f in of_path)
        if of_path[0].kernels_a_layer:
            for kind in of_path[0].kernels_a_layer:
                yield f"{'kernels, ' + kind:>24}" + "".join(
                    f"{f.kernels_a_layer.get(kind, 0.0):>10.1f}" for f in of_path)
