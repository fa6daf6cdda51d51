"""Falsifiers of the engine: the oracle is Qwen3.5, and its bits are those of arithmetic.md."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from contracts.golden import load_golden, logits_digest
from contracts.load import load_contracts
from contracts.schema import Budget, Case
from engine.blocks import TYPES
from falsifiers.instruments import scalar_reference
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from falsifiers.judging.tolerance import flip_margin

FUNCTION_DIGESTS = {"exp": "46309a608f2f398c0fa050d2b8bab8fd56c7a248f4904e162f537f4491e79165",
         "sigmoid": "1902df6647b1f54f1f3c48032836498a2701ebb96e5eb1d1dee580cd66d83e20",
         "silu": "d968269a8394d90bcf5de350bd46a8460b779a4c611493f516dec3458cb3f71b",
         "softplus": "708864203c0b16769345e368ccf6c3bd569886c6a180cbd0dbe8cbe3a4b59799",
         "rsqrt": "aa156c411142691a7f3e436f49dda47bce4e90fb8497e20a4020296398ee382e",
         "rope": "0bcd3d3c0bf27caa8725adf8f1c2508bf22319ac50c0a4bcf671618d62b8053f"}
"""sha256 of f32 bits; the first five are those of arithmetic.md, item 17."""


def test_logits_match_transformers(case: Case, subject: Subject, judge: Judge) -> None:
    golden, model = load_golden(case["model"]), subject.models(case["model"])
    budget = load_contracts()["engine"].parity.truth
    assert isinstance(budget, Budget)
    state = model.new_state(len(golden.tokens[0]))
    ties = []
    for step, token in enumerate(golden.tokens[case["prompt"]]):
        got = model.forward_single(token, state, step)
        want = golden.logits[case["prompt"], step]
        judge.budget("logits", got[None], want[None], budget, step=step)
        margin = flip_margin(got, want)
        judge.law(margin == float("inf") or margin < budget.near_tie, f"logits[step {step}] prefer "
                  f"token {int(got.argmax())}, but should prefer {int(want.argmax())} by a margin "
                  f"of {margin:.3g} standard deviations", step=step)
        if margin != float("inf"):
            ties.append({"step": step, "margin": margin})
    judge.engaged(near_ties=ties)


def test_logits_have_their_known_bits(case: Case, subject: Subject, judge: Judge) -> None:
    golden, model = load_golden(case["model"]), subject.models(case["model"])
    file_sha256 = hashlib.sha256(Path(model.path).read_bytes()).hexdigest()
    judge.law(file_sha256 == golden.file_sha256, f"the {case['model']} file has sha256 "
              f"{file_sha256[:12]}, but the goldens come from {golden.file_sha256[:12]}")
    state = model.new_state(len(golden.tokens[0]))
    for step, token in enumerate(golden.tokens[case["prompt"]][:case["tokens"]]):
        found = logits_digest(model.forward_single(token, state, step))
        want = golden.step_digests[case["prompt"]][step]
        judge.law(found == want, f"logits[step {step}] have digest {found[:12]}, but should have "
                  f"{want[:12]}", rung="bits", step=step)


def test_functions_have_their_known_answers(case: Case, subject: Subject, judge: Judge) -> None:
    name = case["function"]
    if name == "rope":
        values = subject.engine.rope_table(4096, 64, 1e7)
    else:
        first, last = (1, 180001) if name == "rsqrt" else (-90000, 90000)
        values = subject.engine.functions[name](
            (torch.arange(first, last + 1).double() / 1000).float())
    found = hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()
    judge.law(found == FUNCTION_DIGESTS[name], f"{name} has digest {found[:12]}, but should have "
              f"{FUNCTION_DIGESTS[name][:12]}", rung="bits")


def test_functions_keep_their_edges(case: Case, subject: Subject, judge: Judge) -> None:
    nan, inf = float("nan"), float("inf")
    inputs = torch.tensor([nan, inf, -inf, 0.0, -0.0, 88.5, -88.5])
    edges: dict[str, list[float | None]] = {
        "exp": [nan, inf, 0.0, 1.0, 1.0, inf, 0.0], "sigmoid": [nan, 1, 0, 0.5, 0.5, 1, 0],
        "silu": [nan, inf, nan, 0.0, -0.0, 88.5, -0.0],
        "softplus": [nan, inf, 0.0, None, None, 88.5, 0.0]}
    for name, wanted in edges.items():
        results = subject.engine.functions[name](inputs)
        for i, want in enumerate(wanted):
            if want is not None:
                judge.equal(f"{name}({float(inputs[i])})", results[i], torch.tensor(float(want)),
                            rule="truth", finite=False)


def test_products_equal_integer_arithmetic(case: Case, subject: Subject, judge: Judge) -> None:
    reference_row = (scalar_reference.exact_row if case["arithmetic"] == "exact-23"
                     else scalar_reference.ordered_row)
    for name, raw, x in _product_inputs(case["kind"], case["k"]):
        got = subject.engine.weight("w", case["kind"], raw, case["arithmetic"]).product(x[None])[0]
        with np.errstate(all="ignore"):
            want = torch.tensor([float(reference_row(case["kind"], row.tobytes(), x.numpy()))
                                 for row in raw])
        judge.equal("product", got, want, rule="truth", finite=False, inputs=name)


def test_product_row_does_not_depend_on_width(case: Case, subject: Subject, judge: Judge) -> None:
    (_, raw, _), *_ = _product_inputs(case["kind"], 512)
    weight = subject.engine.weight("w", case["kind"], raw, case["arithmetic"])
    x = torch.from_numpy(_normal_values(77, 33 * 512).reshape(33, 512))
    x[5, 3] = float("nan")
    solo = torch.cat([weight.product(row[None]) for row in x])
    for m in case["m"]:
        for first in (0, 1, 33 - m):
            judge.equal("product", weight.product(x[first:first + m]), solo[first:first + m],
                        finite=False, m=m, first=first)


def test_kernels_give_the_reference_bits(case: Case, subject: Subject, judge: Judge) -> None:
    device = subject.device
    if case["kernel"] == "rms_norm":
        kernel, (rows, n) = subject.engine.kernel("rms_norm"), (3, case["k"])
        x = torch.from_numpy(_normal_values(5, rows * n)).view(rows, n)
        w = torch.from_numpy(_normal_values(6, n))
        got = torch.full((rows, n), float("nan"), device=device)
        kernel(x.to(device), w.to(device), 1e-6, got)
        from engine.arithmetic import rms_norm
        judge.equal("rms_norm", got.cpu(), rms_norm(x, w, 1e-6), rule="truth")
        return
    kernel = subject.engine.kernel("gemv_q4_k")
    for name, raw, x in _product_inputs("Q4_K", case["k"], case["n"]):
        want = subject.engine.weight("w", "Q4_K", raw).product(x[None])[0]
        guarded = torch.full((case["n"] + 8,), -7.25, device=device)
        kernel(torch.from_numpy(raw).to(device), x.to(device), guarded[:case["n"]])
        judge.equal("gemv_q4_k", guarded[:case["n"]].cpu(), want, rule="truth", finite=False,
                    inputs=name)
        judge.law(bool((guarded[case["n"]:] == -7.25).all()), "gemv_q4_k wrote past its output")


def test_checkpoint_restores_at_every_step(case: Case, subject: Subject, judge: Judge) -> None:
    model, length = subject.models(case["model"]), case["length"]
    tokens = load_golden("nano").tokens[0][:length]
    pool = model.new_pool(2, length)
    first, second = pool.slot(0), pool.slot(1)
    for view in second.named().values():
        view.fill_(float("nan"))
    for position, token in enumerate(tokens[:-1]):
        model.forward_single(token, first, position)
        saved = subject.engine.checkpoint(first, position + 1)
        digest = first.digest(position + 1)
        want = model.forward_single(tokens[position + 1], first, position + 1)  # changes the slot
        after = first.digest()
        subject.engine.restore(saved, second)
        judge.law(second.digest(position + 1) == digest, f"the state restored at position "
                  f"{position + 1} differs from the saved one", rung="bits", step=position)
        got = model.forward_single(tokens[position + 1], second, position + 1)
        judge.equal("logits", got, want, step=position + 1)
        judge.unchanged("state", after, first.digest(), slot=0, step=position)
        subject.engine.restore(saved, first)


def test_files_that_lie_are_refused(case: Case, subject: Subject, judge: Judge) -> None:
    raw = Path(subject.models("nano").path).read_bytes()
    old, new = case["old"].encode(), case["new"].encode()
    judge.law(len(old) == len(new) and old in raw, f"{case['old']!r} is not in the file")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wrong.gguf")
        path.write_bytes(raw.replace(old, new))
        try:
            subject.engine.load(path)
        except ValueError as error:
            judge.law(case["names"] in str(error), f"the error is {str(error)!r}, which does "
                      f"not name {case['names']}")
        else:
            judge.law(False, f"a file with {case['new']!r} for {case['old']!r} was loaded")


def test_fresh_memory_has_no_effect(case: Case, subject: Subject, judge: Judge) -> None:
    model = subject.models(case["model"])
    logits = []
    for poison in (False, True):
        torch.use_deterministic_algorithms(poison)  # fills new tensors with NaN
        try:
            state = model.new_state(8)
            logits.append([model.forward_single(token, state, i) for i, token in enumerate((3, 5))])
        finally:
            torch.use_deterministic_algorithms(False)
    for step, (plain, poisoned) in enumerate(zip(*logits, strict=True)):
        judge.equal("logits", poisoned, plain, rule="truth", step=step)


def _normal_values(seed: int, n: int) -> np.ndarray:
    """Return f32 values around zero, the same on every machine."""
    raw = np.frombuffer(hashlib.shake_256(f"values {seed}".encode()).digest(8 * n), "<u2")
    total = raw.reshape(n, 4).astype(np.int64).sum(1) - 131070
    return np.asarray(total / 37000.0, np.float32)


def _product_inputs(kind: str, k: int,
                    n: int = 5) -> Iterator[tuple[str, np.ndarray, torch.Tensor]]:
    """Yield a name, block bytes [n, bytes] and activations f32[k], plain and extreme."""
    block = TYPES[kind]
    size = n * k // block.weights * block.bytes
    raw = np.frombuffer(hashlib.shake_256(f"{kind} {k}".encode()).digest(size), np.uint8)
    raw = raw.reshape(n, -1, block.bytes).copy()
    halves = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,), "F16": (0,),
              "BF16": (0,), "F32": (2,)}[kind]
    for at in halves:
        raw[:, :, at + 1] &= 0xBB  # no exponent of all ones
    flat = raw.reshape(n, -1)
    x = _normal_values(k, k)
    yield "plain", flat, torch.from_numpy(x)
    spiked = x.copy()
    spiked[-1], spiked[k // 2] = np.float32(1e-42), 1e9
    yield "one outlier", flat, torch.from_numpy(spiked)
    yield "tiny", flat, torch.from_numpy(x * np.float32(2.0 ** -99))
    yield "zero", flat, torch.zeros(k)
    largest = raw.copy()
    for first, last, value in {"Q4_K": [(4, 144, 0xFF)], "Q5_K": [(4, 176, 0xFF)],
                               "Q6_K": [(0, 192, 0), (192, 208, 0x80)],
                               "Q8_0": [(2, 34, 0x80)]}.get(kind, []):
        largest[:, :, first:last] = value
    yield "largest quants", largest.reshape(n, -1), torch.from_numpy(np.abs(x) + np.float32(1))
    broken = x.copy()
    broken[k - 1] = np.inf
    yield "one infinity", flat, torch.from_numpy(broken)
