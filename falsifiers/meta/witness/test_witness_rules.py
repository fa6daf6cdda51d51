"""Each rule of admission at its borders, and a mutant of each that the table kills."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falsifiers.meta.witness.witness_files import (
    PREFIX,
    WITNESS_TABLE,
    make_band,
    make_witness,
    with_bands,
)
from falsifiers.witness import rules

MUTANTS: dict[str, tuple[str, str]] = {
    "S1: anywhere in the name": (".lower().startswith(prefix.lower())", ".lower().count(prefix)"),
    "S1: case counts": ("name.lower().startswith(prefix.lower())", "name.startswith(prefix)"),
    "S1: the full path": ('path.replace("\\\\", "/").split("/")[-1]', "path"),
    "S1: one system's folders": ('.replace("\\\\", "/")', ""),
    "S1: no digest": ('if _is_blank(model.get("sha256")):', "if False:"),
    "S1: an absent model passes": ('yield "the model\'s file name is absent"', "yield from ()"),
    "S2: three widths": ("WIDTHS = (1, 4, 8, 16)", "WIDTHS = (1, 4, 8)"),
    "S2: no c=1": ("WIDTHS = (1, 4, 8, 16)", "WIDTHS = (4, 8, 16)"),
    "S2: an absent width passes": ("if not times[c]:", "if False:"),
    "S2: twice passes": ("elif times[c] > 1:", "elif times[c] > 2:"),
    "S2: a nameless band passes": ("if times[None]:", "if False:"),
    "S3: wider passes": ("elif m != c:", "elif m < c:"),
    "S3: narrower passes": ("elif m != c:", "elif m > c:"),
    "S3: absent passes": ('yield f"c={c}: m_formed is absent, so no batch is shown"',
                          "yield from ()"),
    "S4: blank passes": ("return text is None or not any(", "return text is None and any("),
    "S4: absent passes": ("return text is None or not any(",
                          "return text is not None and not any("),
    "S4: white space is visible": (
        "return character.isprintable() and not character.isspace()",
        "return character.isprintable()"),
    "S4: an invisible character is visible": (
        "return character.isprintable() and not character.isspace()",
        "return not character.isspace()"),
    "S4: the host is not required": ('IDENTITY = ("host", ', "IDENTITY = ("),
    "S4: the prompt is not required": (', "prompt_sha256")', ")"),
    "S5: the bar is not reached": ("at >= least", "at > least"),
    "S5: one token early": ("at >= least", "at >= least - 1"),
    "S5: 0.05 is a near-tie": ("0 <= margin < NEAR_TIE", "0 <= margin <= NEAR_TIE"),
    "S5: below 0 is a near-tie": ("0 <= margin < NEAR_TIE", "margin < NEAR_TIE"),
    "S5: 0 is no near-tie": ("0 <= margin < NEAR_TIE", "0 < margin < NEAR_TIE"),
    "S5: an absent margin is a near-tie": ("elif margin is None:", "elif False:"),
    "S5: before the stream is a place": ("if at < 0:", "if False:"),
    "S5: unmeasured passes": ("    if at is None:\n", "    if False:\n"),
    "S5: no bar passes": ("    if least is None:\n", "    if False:\n"),
    "S5: reported twice": ('band.get("result") != "PASS" and band', "False and band"),
    "S5: never reported for a failure": (
        'return band.get("result") != "PASS" and band.get("divergence_at") is None',
        'return band.get("result") != "PASS"'),
    "S6: only FAIL is refused": ('if result != "PASS":', 'if result == "FAIL":'),
    "S6: absent passes": ('if result != "PASS":', 'if result is not None and result != "PASS":'),
    "S6: case is nothing": ('if result != "PASS":', 'if (result or "").upper() != "PASS":'),
    "S7: half is too slow": ("batched < LEAST_SCALING * solo", "batched <= LEAST_SCALING * solo"),
    "S7: a quarter is enough": ("LEAST_SCALING = 0.5", "LEAST_SCALING = 0.25"),
    "S7: unmeasured passes": ("if unmeasured or solo", "if False and (unmeasured) or solo"),
    "S7: 0 is a rate": ("rate is None or rate <= 0", "rate is None or rate < 0"),
    "S7: below 0 is a rate": ("rate is None or rate <= 0", "rate is None or rate == 0"),
    "S7: either copy is read": ("if len(ones) != 1 or len(fours) != 1:",
                                "if not ones or not fours or fours.reverse():"),
    "floor: 63": ("FLOOR = 64", "FLOOR = 63"),
    "floor: 65": ("FLOOR = 64", "FLOOR = 65"),
    "cap: two near-ties": ("MOST_NEAR_TIES = 1", "MOST_NEAR_TIES = 2"),
    "cap: no near-tie": ("MOST_NEAR_TIES = 1", "MOST_NEAR_TIES = 0"),
    "cap: c=1 counts": ('if band["c"] > 1 and passes', 'if band["c"] > 0 and passes'),
    "cap: bands that agreed count": (
        "return least is not None and at is not None and at < least and not any(",
        'return band.get("top2_margin_at_divergence") is not None and not any('),
    "cap: divergences count": ("at < least and not any(_agreement_faults(band))", "at < least"),
    "a copy is not checked": ("    return sorted(found, key", "    found = list({band['c']: band "
                              "for band in found}.values())\n    return sorted(found, key"),
    "other widths are judged": ('if band.get("c") in WIDTHS]', 'if band.get("c")]'),
}
"""A weakened or misread rule, as a change of the source of `rules.py`."""


def broken_rules(module: Any, witness: dict[str, Any]) -> list[str]:
    """Return the rules that a witness breaks, or the message of a `TypeError`."""
    try:
        return [reason.rule for reason in module.judge_witness(witness, PREFIX)]
    except TypeError as error:
        return [str(error)]


@pytest.mark.parametrize("name", WITNESS_TABLE)
def test_rules_are_broken_in_order(name: str) -> None:
    witness, broken = WITNESS_TABLE[name]
    assert broken_rules(rules, witness) == broken


@pytest.mark.parametrize("rule", rules.RULES)
def test_every_rule_has_a_witness_that_breaks_only_that_rule(rule: str) -> None:
    assert [rule] in [broken for _, broken in WITNESS_TABLE.values()]


def mutated(name: str) -> ModuleType:
    """Return the rules with one of them changed."""
    old, new = MUTANTS[name]
    text = Path(rules.__file__).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"the mutant {name!r} does not know where to change the rules"
    module = ModuleType("falsifiers.witness.mutated")
    module.__dict__["__name__"] = rules.__name__  # dataclasses look their module up
    exec(compile(text.replace(old, new), rules.__file__, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_changes_the_verdict_on_a_witness(name: str) -> None:
    module = mutated(name)
    assert any(broken_rules(module, witness) != broken
               for witness, broken in WITNESS_TABLE.values())


def test_every_rule_has_a_mutant() -> None:
    assert set(rules.RULES) <= {name.partition(":")[0] for name in MUTANTS}


def test_reasons_are_clear_sentences() -> None:
    for witness, _ in WITNESS_TABLE.values():
        for reason in rules.judge_witness(witness, PREFIX):
            assert reason.sentence.isprintable()
            assert 15 < len(reason.sentence) < 220
            assert not reason.sentence.endswith(".")


def test_foreign_text_cannot_reach_a_terminal() -> None:
    hostile = "llama\x1b[2J\n\u202e" + "x" * 10_000
    witness = make_witness(model={"path": hostile, "sha256": "m"})
    witness["bands"][0]["result"] = hostile
    for reason in rules.judge_witness(witness, PREFIX):
        assert reason.sentence.isascii()
        assert reason.sentence.isprintable()
        assert len(reason.sentence) < 300


def test_sentences_name_their_widths() -> None:
    def sentences(**changes: Any) -> list[str]:
        return [reason.sentence for reason in rules.judge_witness(with_bands(**changes), PREFIX)]

    assert sentences(c1={"decode_tok_s": None}, c4={"decode_tok_s": 0}) == [
        "the decode rate of a request is unmeasured at c=1 and c=4"]
    tie = {"divergence_at": 3, "top2_margin_at_divergence": 0.01}
    assert sentences(c4=tie, c16=tie) == [
        "c=4 and c=16 are each admitted as a near-tie, but at most 1 may be"]


def test_bands_that_agree_for_all_they_declare_are_no_near_ties() -> None:
    agreement = {"declared_min": 64, "divergence_at": 64, "top2_margin_at_divergence": 0.01}
    assert rules.judge_witness(with_bands(c4=agreement, c8=agreement, c16=agreement), PREFIX) == []
    assert not rules.passes_by_near_tie(make_band(4, **agreement))


def test_untrusted_text_is_printed_up_to_80_characters() -> None:
    assert rules.quote_text("x" * 80) == f'"{"x" * 80}"'
    assert rules.quote_text("x" * 81) == f'"{"x" * 77}..."'


@pytest.mark.parametrize(
    ("one", "shown"),
    [
        (make_band(4), True),
        (make_band(4, result="UNMEASURABLE"), False),
        (make_band(4, result=None), False),
        (make_band(4, divergence_at=3), False),
        (make_band(4, declared_min=None), False),
        (make_band(4, divergence_at=3, top2_margin_at_divergence=0.01), True),
        ({}, False),
    ],
)
def test_only_a_correct_band_has_a_speed(one: dict[str, Any], shown: bool) -> None:
    assert rules.is_correct(one) is shown


ODD = st.none() | st.integers(-5, 200) | st.sampled_from([16, 63, 64, 128])
BANDS = st.fixed_dictionaries({}, optional={
    "c": st.sampled_from([None, 1, 2, 4, 8, 16]), "m_formed": ODD, "declared_min": ODD,
    "result": st.sampled_from([None, "PASS", "FAIL", "UNMEASURABLE", ""]), "divergence_at": ODD,
    "top2_margin_at_divergence": st.none() | st.floats(-1, 1), "decode_tok_s": ODD})
WORDS = st.none() | st.sampled_from(["", " ", "Qwen3.5-4B.gguf", "\u202e"])
WITNESSES = st.fixed_dictionaries({"bands": st.lists(BANDS, min_size=1, max_size=6)}, optional={
    "model": st.none() | st.fixed_dictionaries({}, optional={
        "path": WORDS, "sha256": WORDS}), "host": WORDS, "commit": WORDS})


@given(witness=WITNESSES)
def test_any_witness_of_the_right_types_is_judged(witness: dict[str, Any]) -> None:
    found = rules.judge_witness(witness, PREFIX)
    order = list(rules.RULES)
    assert [order.index(r.rule) for r in found] == sorted(order.index(r.rule) for r in found)
    assert found, "no such witness has an identity"


@given(at=st.integers(0, 200), least=st.integers(64, 128), margin=st.none() | st.floats(-0.2, 0.2))
def test_more_agreement_never_hurts(at: int, least: int, margin: float | None) -> None:
    def admitted(place: int) -> bool:
        return not rules.judge_witness(with_bands(c8={
            "divergence_at": place, "declared_min": least, "top2_margin_at_divergence": margin}),
            PREFIX)

    assert admitted(at) <= admitted(at + 1)
    assert admitted(at) == (at >= least or (margin is not None and 0 <= margin < 0.05))


@given(solo=st.floats(0.001, 1e6), batched=st.floats(0.001, 1e6))
def test_rate_rule_is_a_ratio(solo: float, batched: float) -> None:
    found = rules.judge_witness(
        with_bands(c1={"decode_tok_s": solo}, c4={"decode_tok_s": batched}), PREFIX
    )
    assert (not found) == (batched >= solo / 2)


@given(order=st.permutations(range(4)))
def test_order_of_the_bands_does_not_matter(order: list[int]) -> None:
    witness = WITNESS_TABLE["three near-ties"][0]
    turned = {**witness, "bands": [witness["bands"][i] for i in order]}
    assert rules.judge_witness(turned, PREFIX) == rules.judge_witness(witness, PREFIX)
