"""A receipt is fresh for the code that ran, in any layout, and stale for other code."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.load import load_contract
from falsifiers.gate import receipts
from falsifiers.gate.receipts import Receipt
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.gate.fake_checkout import fake_case_row, write_checkout
from falsifiers.meta.judging.factories import judged_verdict

KERNEL = "def project(x):\n    return x + 1\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_checkout(tmp_path, p3=[fake_case_row("a"), fake_case_row("b", tier="cuda")])
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/arithmetic.py").write_text("SUM = 'pairs'\n")
    (tmp_path / "phases/p3_made_up/kernel_rows.py").write_text(KERNEL)
    (tmp_path / "phases/p3_made_up/increment.py").write_text(
        "def path():\n    from phases.p2_more import kernel_more\n    return kernel_more\n")
    (tmp_path / "phases/p2_more").mkdir()
    (tmp_path / "phases/p2_more/kernel_more.py").write_text(KERNEL)
    return tmp_path


def proof(root: Path) -> str:
    return receipts.device_proof(load_contract(root / "contracts/p3.yaml"), root)


def write_receipt(root: Path, outcome: str = "passed", tier: str = "cuda") -> None:
    """Write a receipt for the current code."""
    contract = load_contract(root / "contracts/p3.yaml")
    verdict = judged_verdict("b", outcome, phase="p3", tier=tier,  # type: ignore[arg-type]
                             case=f"p3/rows_hold[{tier}-b]")
    receipt = Receipt(phase="p3", device="fake", measured="2026-01-31", versions={},
                      digest=receipts.phase_digest(contract, root), verdicts=(verdict,))
    path = root / receipts.FOLDER / "fake/p3.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(receipt.model_dump_json())


def test_no_receipt_is_no_proof(root: Path) -> None:
    assert proof(root) == "none"


def test_receipt_of_this_code_is_fresh(root: Path) -> None:
    write_receipt(root)
    assert proof(root) == "fresh"


def test_emulated_cases_do_not_change_the_digest(root: Path) -> None:
    write_receipt(root)
    contract = root / "contracts/p3.yaml"
    contract.write_text(contract.read_text() + "\nemulated: {rows_hold: ['b']}\n")
    assert "emulate-b" in {f"{c.tier}-{c.name}" for c in load_contract(contract).expand()}
    assert proof(root) == "fresh"


@pytest.mark.parametrize("name", [
    "phases/p3_made_up/kernel_rows.py", "phases/p2_more/kernel_more.py", "engine/arithmetic.py"])
def test_changed_code_makes_it_stale_and_changed_layout_does_not(root: Path, name: str) -> None:
    write_receipt(root)
    text = (root / name).read_text()
    (root / name).write_text("# why\n\n" + text.replace(" + ", "  +  "))
    assert proof(root) == "fresh"
    (root / name).write_text(text + "MORE = 1\n")
    assert proof(root) == "stale"


def test_kernels_that_a_table_names_count_as_those_that_are_imported(root: Path) -> None:
    for folder, text in (("p3_made_up", "from phases.p2_more import increment as before\n"),
                         ("p2_more", "conv = op(reference.conv, triton='kernel_more.conv')\n")):
        (root / "phases" / folder / "increment.py").write_text(text)
    write_receipt(root)
    assert proof(root) == "fresh"
    (root / "phases/p2_more/kernel_more.py").write_text(KERNEL + "MORE = 1\n")
    assert proof(root) == "stale"


def test_digest_covers_the_kernels_of_every_phase_below() -> None:
    tree = Path(__file__).parents[3]
    found = receipts.kernel_files("phases.p8_decode_graph", tree)
    assert found >= {path for phase in ("p3", "p4", "p5", "p6", "p8")
                     for path in tree.glob(f"phases/{phase}_*/kernel_*.py")}
    assert tree / "engine/kernels/nvrtc.py" in found
    assert tree / "phases/p6_batched_attention/attend.cu" in found


def test_changed_contract_makes_it_stale_and_a_comment_does_not(root: Path) -> None:
    write_receipt(root)
    path = root / "contracts/p3.yaml"
    path.write_text("# why\n" + path.read_text())
    assert proof(root) == "fresh"
    path.write_text(path.read_text().replace("a fake phase", "another phase"))
    assert proof(root) == "stale"


@pytest.mark.parametrize(("outcome", "tier"), [
    ("failed", "cuda"), ("unmeasurable", "cuda"), ("error", "cuda"), ("passed", "cpu")])
def test_receipt_that_shows_no_pass_on_a_device_proves_nothing(root: Path, outcome: str,
                                                               tier: str) -> None:
    write_receipt(root, outcome, tier)
    assert proof(root) == "stale"


def test_broken_receipt_is_named(root: Path) -> None:
    write_receipt(root)
    path = root / receipts.FOLDER / "fake/p3.json"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(SuiteError, match=r"p3\.json: is not a receipt"):
        proof(root)


def test_cuda_source_changes_the_digest_and_its_comments_do_not(root: Path) -> None:
    source = root / "phases/p3_made_up/rows.cu"
    source.write_text("int a;  // one\n")
    write_receipt(root)
    source.write_text("// another\nint   a;\n")
    assert proof(root) == "fresh"
    source.write_text("int b;\n")
    assert proof(root) == "stale"
