"""Public names are words of the field: a function's name is a verb phrase, a class's is a noun."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("contracts", "engine", "falsifiers", "phases", "reports")
PARTICIPLE = "it is a participle and names no action or thing"
PRONOUN = "it does not name what it refers to"
PRIVATE = "it is private vocabulary of this repository"
MANY = "it named several things here"
BANNED = {
    "told": (PARTICIPLE, "format_report, message or summary"),
    "said": (PARTICIPLE, "message or reply"), "asked": (PARTICIPLE, "request or options"),
    "made": (PARTICIPLE, "build_setup, or a noun such as contract"),
    "held": (PARTICIPLE, "expected, or a noun such as tensor"),
    "kept": (PARTICIPLE, "cached or stored, with a noun"),
    "given": (PARTICIPLE, "a noun such as option, path or cases"),
    "taken": (PARTICIPLE, "recorded or captured, with a noun"),
    "placed": (PARTICIPLE, "a verb phrase such as allocate_slots"),
    "parted": (PARTICIPLE, "find_divergence or differing"),
    "named": (PARTICIPLE, "by_name, or a noun such as tensors"),
    "changed": (PARTICIPLE, "a verb phrase such as replace_value"),
    "shown": (PARTICIPLE, "a verb phrase such as format_value"),
    "offered": (PARTICIPLE, "candidate"), "heard": (PARTICIPLE, "client_reply"),
    "answered": (PARTICIPLE, "reply or vector_fixtures"),
    "planted": (PARTICIPLE, "expected_locations or list_planted"),
    "bisected": (PARTICIPLE, "bisect_setup"),
    "whole": ("it is an adjective", "complete or full, with a noun"),
    "due": ("it is an adjective", "expected, or a verb phrase such as require_proof"),
    "beside": ("it is a preposition", "a noun such as neighbour_rows"),
    "into": ("it is a preposition", "a verb phrase such as write_into_slot"),
    "of": ("it is a preposition", "from_NOUN, or a verb phrase"),
    "own": (PRONOUN, "what it belongs to, with a noun"),
    "mine": (PRONOUN, "what it belongs to, with a noun"),
    "theirs": (PRONOUN, "what it belongs to, with a noun"),
    "peer": (PRIVATE, "server_fixture, baseline or reference"),
    "dull": (PRIVATE, "scalar_reference"), "steady": (PRIVATE, "deterministic_dot"),
    "fences": (PRIVATE, "bounds_checker"), "edges": (PRIVATE, "guard_pages"),
    "engagement": (PRIVATE, "load_counter"), "liars": (PRIVATE, "faulty_candidates"),
    "lies": (PRIVATE, "faulty_candidates"), "desk": (PRIVATE, "admission_queue"),
    "job": (PRIVATE, "request_state"), "ledger": (PRIVATE, "verdict_reporter"),
    "nearties": (PRIVATE, "tolerance"), "none_left": (PRIVATE, "kill_descendants"),
    "greedy": (PRIVATE, "greedy_checks"), "repro": (PRIVATE, "repro_script or repro_command"),
    "carry": (PRIVATE, "an explicit QuantisedActivations argument"),
    "integers_of": (PRIVATE, "an explicit QuantisedActivations argument"),
    "wait_for_inputs": (PRIVATE, "pdl_wait"),
    "let_the_next_start": (PRIVATE, "pdl_launch_dependents"),
    "scenes": (MANY, "scenario"), "lanes": (MANY, "paired_runs"),
    "Lane": (MANY, "BatchRun or SoloRun"),
    "House": (PRIVATE, "Harness"), "Site": (PRIVATE, "Harness"), "Rig": (PRIVATE, "Harness"),
    "Alone": (PRIVATE, "SoloRun"), "Desk": (PRIVATE, "AdmissionQueue"),
    "Job": (PRIVATE, "RequestState"), "Ledger": (PRIVATE, "VerdictReporter"),
}
"""By name: the reason why it is banned, and a better one."""
ALLOWED: dict[str, set[str]] = {
    "engine/op_table.py": {"of"},
    "engine/quantised.py": {"of"},
    "engine/state.py": {"named", "whole"},  # older names that candidates use
    "falsifiers/meta/bisect/test_search.py": {"changed"},
    "falsifiers/meta/vectors/test_vectors.py": {"answered"},
    "falsifiers/meta/witness/test_witness_take.py": {"of"},
    "phases/p5_batched_gdn/reference.py": {"of"},
    "phases/p7_prefix_reuse/attacks.py": {"named"},
    "phases/p8_decode_graph/kernel_graphs.py": {"kept"},
    "phases/p8_decode_graph/reference.py": {"of"},
}
"""By file: banned names that are still there."""
NAMED_BY_ID = ("mutants", "wrong_")
"""Files of mutants: a function or class there has its mutant's id."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield a module's functions, classes and methods, those under `if` and `try` too."""
    for node in body:
        if isinstance(node, Definition):
            yield node
        if isinstance(node, ast.ClassDef | ast.If | ast.Try):
            yield from definitions(node.body)


def find_banned(path: Path, source: str) -> list[str]:
    """Return one line `file:line: ...` for each banned public name that a module defines."""
    by_id = path.stem.startswith(NAMED_BY_ID)
    found = [(1, "module", path.stem)] if path.stem in BANNED else []
    for node in definitions(ast.parse(source).body):
        is_test = path.stem.startswith("test_") and node.name.startswith("test_")
        if node.name in BANNED and not by_id and not is_test:
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            found.append((node.lineno, kind, node.name))
    return [f"{path}:{line}: {kind} {name!r}: {BANNED[name][0]}; use {BANNED[name][1]}"
            for line, kind, name in found if name not in ALLOWED.get(path.as_posix(), ())]


def modules() -> list[Path]:
    return sorted([*ROOT.glob("*.py"), *(path for package in PACKAGES
                                         for path in (ROOT / package).rglob("*.py"))])


def test_no_public_name_is_banned() -> None:
    found = [line for path in modules()
             for line in find_banned(path.relative_to(ROOT), path.read_text(encoding="utf-8"))]
    assert found == [], "\n" + "\n".join(found)


def test_allowed_names_are_still_there() -> None:
    for file, names in ALLOWED.items():
        defined = {node.name for node in definitions(ast.parse((ROOT / file).read_text()).body)}
        assert names <= defined | {Path(file).stem}, file


FAULTY = """\
def told(): ...

class House:
    def held(self): ...

if True:
    async def whole(): ...
"""


def test_banned_names_of_a_made_up_module_are_found() -> None:
    lines = find_banned(Path("engine/dull.py"), FAULTY)
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in lines] == [
        "engine/dull.py:1 module 'dull'", "engine/dull.py:1 function 'told'",
        "engine/dull.py:3 class 'House'", "engine/dull.py:4 function 'held'",
        "engine/dull.py:7 function 'whole'"]
    assert lines[2].endswith("it is private vocabulary of this repository; use Harness")


@pytest.mark.parametrize(("file", "source"), [
    ("phases/p1_x/mutants.py", "def held(subject): ..."),
    ("engine/mutants_of_x.py", "def due(): ..."),
    ("engine/ops.py", "def write_message(told): ..."), ("engine/ops.py", "told_lines = []"),
    ("engine/ops.py", "def run():\n    def told(): ...")])
def test_ids_and_locals_are_not_judged(file: str, source: str) -> None:
    assert find_banned(Path(file), source) == []
