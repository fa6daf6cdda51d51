"""Every rung of the judge fails for a wrong value and passes for a right one."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from falsifiers.judging.errors import SuiteError
from falsifiers.judging.judge import Judge, format_bits, ulps_apart
from falsifiers.judging.tolerance import cosine_and_norm_ratio, flip_margin
from falsifiers.meta.judging.factories import BUDGET, broken_finding, make_case

ONES = torch.ones(4, 8)


def judge() -> Judge:
    return Judge(make_case("tiny-m4"))


def ones_with(at: tuple[int, int], value: float) -> torch.Tensor:
    x = ONES.clone()
    x[at] = value
    return x


def test_equal_tensors_pass_and_are_counted() -> None:
    j = judge()
    j.equal("out", ONES, ONES.clone())
    assert j.compared == 32
    assert [(w.op, w.rung, w.ulps, w.compared) for w in j.worst] == [("out", "bits", 0, 32)]


@pytest.mark.parametrize(("wrong", "rung"), [
    (ONES.reshape(8, 4), "shape"),
    (ONES[None], "shape"),
    (ONES.double(), "dtype"),
    (ONES.bfloat16(), "dtype"),
    (ones_with((2, 3), float("nan")), "finite"),
    (ones_with((2, 3), float("inf")), "finite"),
    (ones_with((2, 3), 1 + 2**-23), "bits"),
])
def test_finding_names_the_rung(wrong: torch.Tensor, rung: str) -> None:
    finding = broken_finding(lambda: judge().equal("out", wrong, ONES, step=3))
    assert finding.rung == rung
    assert finding.where["step"] == 3


def test_lowest_rung_is_reported_first() -> None:
    wrong = torch.full((8, 4), float("nan"), dtype=torch.float64)
    assert broken_finding(lambda: judge().equal("out", wrong, ONES)).rung == "shape"


def test_negative_zero_is_not_zero() -> None:
    finding = broken_finding(
        lambda: judge().equal("out", torch.tensor([0.0]), torch.tensor([-0.0])))
    assert (finding.got, finding.want, finding.rung) == ("0x00000000", "0x80000000", "bits")


def test_nan_in_both_fails_unless_poison_is_compared() -> None:
    nan = torch.full((3,), float("nan"))
    assert broken_finding(lambda: judge().equal("out", nan, nan)).rung == "finite"
    judge().equal("out", nan, nan, finite=False)


def test_integers_are_compared_by_value() -> None:
    finding = broken_finding(
        lambda: judge().equal("tokens", torch.tensor([5, 6]), torch.tensor([5, 7])))
    assert (finding.got, finding.want, finding.ulps) == ("6", "7", None)


def test_message_names_nan_and_infinity() -> None:
    nan, number, far = torch.tensor([float("nan")]), torch.tensor([1.0]), torch.tensor([-torch.inf])
    sentences = [broken_finding(lambda a=a, b=b, f=f: judge().equal("out", a, b, finite=f)).sentence  # type: ignore[misc]
                 for a, b, f in ((nan, nan, True), (nan, number, True), (number, far, False))]
    assert [sentence.split("=", 1)[1].split(" [")[0] for sentence in sentences] == [
        "0x7fc00000 (NaN), but should be finite",
        "0x7fc00000 (NaN), but should be 0x3f800000",
        "0x3f800000, but should be 0xff800000 (infinite)"]


def test_budget_names_the_row_and_the_vector() -> None:
    finding = broken_finding(lambda: judge().budget("out", ONES * 2, ONES, BUDGET, row=5))
    assert finding.where == {"row": 5, "vector": 0}
    assert finding.sentence.startswith("out[row 5, vector 0] has cosine 1.0000000")


def test_message_follows_the_template() -> None:
    wrong = ones_with((3, 1), 1 + 2**-23)
    finding = broken_finding(lambda: judge().equal("logits", wrong, ONES, row=3, step=17))
    assert finding.sentence == ("logits[row 3, step 17, element [3, 1]]=0x3f800001, but should be "
                                "0x3f800000 (1 ulp) [p1 holds, cpu-tiny-m4]")
    assert finding.differing == 1


def test_one_bad_row_of_32_fails_though_the_tensor_s_cosine_is_high() -> None:
    torch.manual_seed(0)
    want = torch.randn(32, 512)
    got = want.clone()
    got[7] += 0.2 * torch.randn(512)
    cosine = torch.nn.functional.cosine_similarity(got.flatten(), want.flatten(), dim=0)
    assert cosine > 0.999
    finding = broken_finding(lambda: judge().budget("out", got, want, BUDGET))
    assert (finding.rung, finding.where["vector"]) == ("budget", 7)


def test_scale_by_two_fails_though_the_cosine_is_one() -> None:
    finding = broken_finding(lambda: judge().budget("out", ONES * 2, ONES, BUDGET))
    assert "norm ratio 2.000000" in finding.sentence


@pytest.mark.parametrize(("wrong", "rung"), [
    (ones_with((0, 0), float("nan")), "finite"), (ONES.half(), "dtype"), (ONES[:3], "shape"),
    (torch.zeros(4, 8), "budget")])
def test_budget_uses_the_same_ladder(wrong: torch.Tensor, rung: str) -> None:
    assert broken_finding(lambda: judge().budget("out", wrong, ONES, BUDGET)).rung == rung


def test_budget_passes_and_stores_the_worst_of_all_calls() -> None:
    j, near = judge(), ONES * (1 + 5e-4)
    j.budget("out", near, ONES, BUDGET)
    j.budget("out", ONES, ONES, BUDGET)
    j.budget("out", torch.zeros(1, 8), torch.zeros(1, 8), BUDGET)
    (worst,) = j.worst
    assert worst.compared == 72
    assert worst.norm_error == pytest.approx(5e-4, rel=1e-2)
    assert worst.cosine == pytest.approx(1.0)
    assert worst.ulps == int(ulps_apart(near, ONES).max()) > 0


def test_budget_passes_at_its_bounds_and_not_past_them() -> None:
    torch.manual_seed(1)
    want = torch.randn(1, 64)
    got = want + 0.01 * torch.randn(1, 64)
    cosine, ratio = (float(x) for x in cosine_and_norm_ratio(got, want))
    at = {"cosine": cosine, "norm": abs(ratio - 1)}
    judge().budget("out", got, want, BUDGET.model_copy(update=at))
    for name, past in (("cosine", cosine + 1e-9), ("norm", abs(ratio - 1) - 1e-9)):
        tight = BUDGET.model_copy(update={**at, name: past})
        assert broken_finding(partial(judge().budget, "out", got, want, tight)).rung == "budget"


def test_changed_argmax_fails_where_it_was_decided() -> None:
    want = torch.tensor([[3.0, 2.5] + [0.0] * 900])
    got = torch.tensor([[2.99, 3.0] + [0.0] * 900])
    loose = BUDGET.model_copy(update={"cosine": 0.9, "norm": 0.5})
    judge().budget("logits", got, want, loose)
    finding = broken_finding(lambda: judge().budget("logits", got, want, loose, logits=True))
    assert "argmax 1, but should have 0" in finding.sentence


def test_changed_argmax_at_a_near_tie_passes_and_is_counted() -> None:
    want = torch.tensor([[3.0, 2.99999, 0.0, 0.0]])
    j = judge()
    j.budget("logits", want[:, [1, 0, 2, 3]], want, BUDGET, logits=True)
    assert j.evidence["near_ties"] == 1


def test_near_tie_passes_at_its_bound_and_not_past_it() -> None:
    want, got = torch.tensor([[3.0, 2.9, 0.0, 0.0]]), torch.tensor([[2.9, 3.0, 0.0, 0.0]])
    margin = flip_margin(got[0], want[0])
    at = BUDGET.model_copy(update={"cosine": 0.99, "near_tie": margin})
    judge().budget("logits", got, want, at, logits=True)
    tight = at.model_copy(update={"near_tie": margin - 1e-9})
    finding = broken_finding(lambda: judge().budget("logits", got, want, tight, logits=True))
    assert finding.rung == "budget"


def test_broken_law_and_broken_frame_are_named() -> None:
    j = judge()
    assert broken_finding(lambda: j.law(False, "two rows share slot 3", slot=3)).rung == "law"
    finding = broken_finding(lambda: j.unchanged("slot", "a" * 64, "b" * 64, slot=2))
    assert finding.rung == "frame"
    assert "slot[slot 2]" in finding.sentence
    assert j.compared == 0
    j.law(True, "a fake law")
    j.unchanged("slot", "same", "same")
    assert j.compared == 2


def test_evidence_that_is_not_json_is_refused_at_once() -> None:
    j = judge()
    j.engaged(rows=3)
    with pytest.raises(SuiteError, match="JSON"):
        j.engaged(rows=ONES, steps=4)
    j.engaged(tokens=5)
    assert j.evidence == {"rows": 3, "tokens": 5}


@pytest.mark.parametrize(("a", "b", "apart"), [
    (1.0, 1 + 2**-23, 1), (-1.0, -1 - 2**-23, 1), (0.0, -0.0, 0), (0.0, 2.0**-149, 1),
    (-(2.0**-149), 2.0**-149, 2)])
def test_ulps_count_across_zero(a: float, b: float, apart: int) -> None:
    assert int(ulps_apart(torch.tensor([a]), torch.tensor([b]))) == apart


@pytest.mark.parametrize(("dtype", "text"), [
    (torch.float16, "0x3c00"), (torch.bfloat16, "0x3f80"), (torch.float32, "0x3f800000"),
    (torch.float64, "0x3ff0000000000000"), (torch.int32, "1")])
def test_bit_pattern_has_its_type_s_width(dtype: torch.dtype, text: str) -> None:
    assert format_bits(torch.ones((), dtype=dtype)) == text
