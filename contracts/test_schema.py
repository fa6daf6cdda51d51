"""A contract loads, or its error names the file, the line and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.load import ContractError, load_contract, load_contracts
from contracts.schema import Contract

VALID_CONTRACT = """\
phase: p1
package: phases.p1_example
title: an example phase
claim: every row equals the same row run by itself
not_proven: that anything is fast
ops: [step]
parity: {twin: bitwise, truth: bitwise}
falsifiers:
  - id: rows_hold
    attacks: rows of a batch
    if_fails: a row depends on the batch around it
  - id: slots_hold
    attacks: slots of a batch
    if_fails: a slot was written by a stranger
cases:
  - {falsifier: rows_hold, id: "nano-m{m}", given: {m: [1, 2], model: nano}}
  - {falsifier: slots_hold, tier: [cpu, cuda], id: one, quick: false, must_claim: false}
mutants:
  - {id: one_row_for_all, fault: One row is all rows., killed_by: [rows_hold]}
  - {id: no_slot, fault: There is no slot., killed_by: [slots_hold]}
"""


def write_contract(folder: Path, text: str, name: str = "p1.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def load_text(folder: Path, text: str = VALID_CONTRACT) -> Contract:
    return load_contract(write_contract(folder, text))


def test_axes_are_multiplied_out_over_tiers(tmp_path: Path) -> None:
    cases = list(load_text(tmp_path).expand())
    assert [case.id for case in cases] == [
        "p1/rows_hold[cpu-nano-m1]", "p1/rows_hold[cpu-nano-m2]",
        "p1/slots_hold[cpu-one]", "p1/slots_hold[cuda-one]"]
    assert cases[1]["m"] == 2
    assert [case.quick for case in cases] == [True, True, False, False]
    assert [case.must_claim for case in cases] == [True, True, False, False]


def test_device_cases_that_are_named_are_emulated_too(tmp_path: Path) -> None:
    cases = list(load_text(tmp_path, VALID_CONTRACT + 'emulated: {slots_hold: ["o*"]}\n').expand())
    assert [case.id for case in cases[3:]] == ["p1/slots_hold[cuda-one]",
                                               "p1/slots_hold[emulate-one]"]
    assert cases[4].model_dump(exclude={"tier"}) == cases[3].model_dump(exclude={"tier"})


def test_own_arithmetic_has_a_budget_only_where_one_is_given(tmp_path: Path) -> None:
    budget = ("own: {cosine: 0.999, norm: 0.01, near_tie: 0, reason: sums in another order, "
              "measured: 1e-7 on one machine}")
    mine = load_text(tmp_path,
                     VALID_CONTRACT.replace("truth: bitwise", f"truth: bitwise, {budget}"))
    assert mine.parity.own is not None
    assert (mine.parity.truth, mine.parity.own.cosine) == ("bitwise", 0.999)
    assert load_text(tmp_path).parity.own is None


def test_folder_is_loaded_by_phase(tmp_path: Path) -> None:
    write_contract(tmp_path, VALID_CONTRACT.replace("phase: p1", "phase: p4"), "p4.yaml")
    write_contract(tmp_path, VALID_CONTRACT.replace("phase: p1", "phase: engine"), "engine.yaml")
    assert list(load_contracts(tmp_path)) == ["engine", "p4"]


BROKEN_CONTRACTS = {
    "unknown key": (8, "falsifiers:", "fallsifiers: []\nfalsifiers:", "unknown key"),
    "unknown key in a case": (16, "{falsifier: rows_hold,", "{falsifier: rows_hold, fast: yes,",
                              "unknown key"),
    "missing key": (1, "title: an example phase\n", "", "title: Field required"),
    "unknown phase": (1, "phase: p1", "phase: p9", "phase"),
    "another file's phase": (1, "phase: p1", "phase: p2", "but the file name says 'p1'"),
    "unknown falsifier": (16, "{falsifier: rows_hold,", "{falsifier: rows_hald,",
                          "unknown falsifier 'rows_hald'"),
    "falsifier twice": (12, "id: slots_hold", "id: rows_hold", "duplicate falsifier 'rows_hold'"),
    "mutant twice": (20, "id: one_row_for_all", "id: no_slot", "duplicate mutant 'no_slot'"),
    "mutant of an unknown falsifier": (20, "killed_by: [slots_hold]", "killed_by: [slots_hald]",
                                       "'no_slot' names unknown falsifier 'slots_hald'"),
    "idle falsifier": (12, "{falsifier: slots_hold, tier: [cpu, cuda]",
                       "{falsifier: rows_hold, tier: [cpu, cuda]", "'slots_hold' has no case"),
    "unknown tier": (17, "tier: [cpu, cuda]", "tier: [cpu, tpu]", "tier"),
    "tier that no case names": (17, "tier: [cpu, cuda]", "tier: [cpu, emulate]", "tier"),
    "emulated without a device case": (18, "mutants:\n",
                                       "emulated: {rows_hold: ['*']}\nmutants:\n",
                                       "'rows_hold' has no device case '*' to be emulated"),
    "case id without its axis": (16, "nano-m{m}", "nano-m{n}", "cannot be filled in"),
    "case id twice": (16, "nano-m{m}", "nano", "duplicate case 'p1/rows_hold[cpu-nano]'"),
    "case id with a space": (16, "nano-m{m}", "nano m{m}", "a test's name cannot have"),
    "budget without a reason": (7, "truth: bitwise", "truth: {cosine: 0.9, norm: 0.1, "
                                "near_tie: 0, measured: on two machines}", "reason"),
    "own budget without its floor": (7, "truth: bitwise", "truth: bitwise, own: {cosine: 0.9, "
                                     "norm: 0.1, near_tie: 0, reason: sums in another order}",
                                     "measured"),
    "twin that is not bitwise": (7, "twin: bitwise", "twin: close", "twin"),
    "key twice": (4, "claim:", "title: again\nclaim:", "duplicate key 'title'"),
    "not YAML": (7, "ops: [step]", "ops: [step", "expected ','"),
    "a list": (1, VALID_CONTRACT, "[1, 2]", "dictionary"),
    "empty": (1, VALID_CONTRACT, "", "dictionary"),
}


@pytest.mark.parametrize("fault", BROKEN_CONTRACTS)
def test_broken_contract_names_file_and_line(tmp_path: Path, fault: str) -> None:
    line, old, new, message = BROKEN_CONTRACTS[fault]
    text = VALID_CONTRACT.replace(old, new, 1)
    assert text != VALID_CONTRACT
    with pytest.raises(ContractError) as caught:
        load_text(tmp_path, text)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert message in sentence
    named = int(sentence.removeprefix(f"{tmp_path}/p1.yaml:").split(":")[0])
    assert named == line, sentence


def test_file_that_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="cannot be read"):
        load_contract(tmp_path / "p1.yaml")
    (tmp_path / "p1.yaml").write_bytes(b"phase: \xff")
    with pytest.raises(ContractError, match="UTF-8"):
        load_contract(tmp_path / "p1.yaml")


def test_records_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_text(tmp_path).title = "other"
