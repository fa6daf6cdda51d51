"""The page: self-contained, sound as HTML, escaped, and in agreement with its verdicts."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise

import pytest

from contracts.schema import StatedTier
from reports import fake_evidence
from reports.evidence import Evidence
from reports.markdown import format_brief
from reports.outline import Outline
from reports.render import SIDE_FILES, page

PAGES = {
    "green": fake_evidence.evidence(),
    "red": fake_evidence.failing_evidence(),
    "hostile": fake_evidence.failing_evidence(fake_evidence.HOSTILE_TEXT),
    "empty": fake_evidence.empty_evidence(),
}


@cache
def render_named(name: str) -> tuple[Evidence, Outline, str]:
    text = page(PAGES[name])
    return PAGES[name], Outline(text), text


@pytest.fixture(params=PAGES)
def parts(request: pytest.FixtureRequest) -> tuple[Evidence, Outline, str]:
    return render_named(request.param)


PageParts = tuple[Evidence, Outline, str]


def test_page_is_sound_html(parts: PageParts) -> None:
    _, outline, text = parts
    assert text.startswith("<!doctype html>")
    assert outline.open == []
    assert [name for name, n in Counter(outline.ids).items() if n > 1] == []
    levels = [int(tag[1]) for tag in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert outline.tags.count("main") == outline.tags.count("h1") == 1


def test_page_needs_nothing_but_itself(parts: PageParts) -> None:
    _, outline, text = parts
    outside = [link for link in outline.links if not link.startswith("#")]
    assert set(outside) == {"data:,", *SIDE_FILES}
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert not {"script", "iframe", "object", "embed", "base", "img"} & set(outline.tags)
    assert [name for name, _ in outline.attributes if name.startswith("on")] == []
    style = text[text.index("<style>"):text.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style


def test_page_can_be_read_without_eyes(parts: PageParts) -> None:
    _, outline, _ = parts
    assert ("lang", "en") in outline.attributes
    assert outline.tags.count("table") == outline.tags.count("caption")
    named = [value for name, value in outline.attributes if name == "aria-label"]
    assert all(named)
    plots = outline.tags.count("svg")
    assert sum(name == "role" and value == "img" for name, value in outline.attributes) == plots
    cells = outline.texts("span.cell") + outline.texts("a.cell")
    assert all(re.search(r"[^\W\d_]{3}|[✓≈✗!?~·●○]", text) for text in cells)


def test_every_failure_has_its_sentence_diagnosis_and_repro() -> None:
    evidence, outline, _ = render_named("red")
    bad = [v for v in evidence.every_verdict if v.outcome in ("failed", "error")]
    texts = outline.texts("pre.repro")
    assert len(bad) == 6
    for verdict in bad:
        assert texts.count(verdict.repro) == 1
        sentence = verdict.finding.sentence if verdict.finding else f"error: {verdict.reason}"
        assert outline.texts("p.sentence").count(sentence) == 1
    words = " ".join(outline.texts("article.failure"))
    assert "a plain word: look here ..." in words
    assert "a plain word: look at the file" in words
    assert "pytest died of a plain word" in words


def test_surviving_mutant_is_shown_as_a_failure() -> None:
    words = " ".join(render_named("red")[1].texts("article.failure"))
    assert "p1/copied survived: a plain word is wrong." in words
    assert "but only rows_hold did" in words
    assert "p1/slots_hold killed no mutant" in words
    assert "p1/rolled : a plain word fails without it" in words.replace("rolled:", "rolled :")


@pytest.mark.parametrize(
    "outcomes", [("passed",) * 7, fake_evidence.MIXED_OUTCOMES, ("error",) * 7]
)
def test_counts_agree_with_the_verdicts(outcomes: tuple[str, ...]) -> None:
    outline = Outline(page(fake_evidence.evidence(outcomes)))
    counts = Counter(outcomes)
    texts = outline.texts("td.counts")
    assert len(texts) == 1
    for outcome, count in counts.items():
        assert f"{count} {outcome}" in texts[0]
    cells = Counter(value for name, value in outline.attributes
                    if name == "title" and value and value.startswith("cpu-"))
    assert cells.total() == len(outcomes)
    assert outline.texts("dl.facts")[0].startswith(f"cases{counts['passed']} of 7 passed")


def test_hostile_words_change_no_element_of_the_page() -> None:
    tame, hostile = render_named("red")[2], render_named("hostile")[2]
    assert Counter(Outline(hostile).tags) - Counter(code_elements(hostile)) == \
        Counter(Outline(tame).tags) - Counter(code_elements(tame))
    assert "<script" not in hostile
    assert hostile.count("&lt;script&gt;") > 20


def code_elements(text: str) -> list[str]:
    """Return the code elements, which a contract's backticks make, and possible line breaks."""
    return [tag for tag in Outline(text).tags if tag in ("code", "wbr")]


def test_green_page_says_yes_and_tells_no_failure() -> None:
    outline = render_named("green")[1]
    assert outline.texts("h1.")[0].startswith("✓ PASS Yes")
    assert "failures" not in outline.ids
    assert outline.texts("article.failure") == []


def test_red_page_says_no_before_anything_else() -> None:
    outline = render_named("red")[1]
    assert outline.texts("h1.")[0].startswith("✗ FAIL No: P1 fails in 4 of 7 cases")
    assert outline.ids.index("ladder") < outline.ids.index("failures") < outline.ids.index("p1")


def test_page_about_nothing_passes_nothing() -> None:
    outline = render_named("empty")[1]
    assert outline.texts("h1.")[0].startswith("? UNMEASURABLE Cannot tell")
    assert len([text for text in outline.texts("span.badge") if text == "· not built"]) == 10


def test_ladder_names_every_phase_and_what_is_not_proven() -> None:
    rows = render_named("red")[1].texts("table.wide")[0]
    for phase in ("engine", *(f"P{n}" for n in range(9)), "model"):
        assert phase in rows
    assert "Not proven: a plain word, and speed" in rows
    assert "· not judged" in rows  # P2, which the candidate has no part in


@pytest.mark.parametrize(("tier", "texts"), [("cuda", "none"), ("cpu", "no device case")])
def test_ladder_misses_no_proof_where_no_case_asks_for_a_device(tier: StatedTier,
                                                                texts: str) -> None:
    evidence = fake_evidence.evidence(contracts={"p1": fake_evidence.contract(tier=tier)})
    rows = Outline(page(evidence)).texts("table.wide")[0]
    assert f"7 passed {texts}a plain word, 2026-01-30" in rows  # a receipt's device, below
    assert f"| 7 passed | {texts} |" in format_brief(evidence)


def test_budget_in_force_is_told_with_reason_floor_and_picture() -> None:
    evidence = fake_evidence.evidence()
    worst = [{"op": "logits", "rung": "budget", "ulps": 9, "cosine": 1 - 1e-6, "norm_error": 1e-5,
              "compared": 10}]
    verdicts = [fake_evidence.verdict(case, worst=worst, evidence={"near_ties": 2})
                for case in evidence.contracts["p1"].expand()]
    text = page(fake_evidence.evidence(verdicts=verdicts, contracts={
        "p1": fake_evidence.contract(truth=fake_evidence.BUDGET)}))
    outline = Outline(text)
    words = " ".join(outline.texts("main."))
    for words in ("cosine at least 0.999", "a made-up reason, long enough", "a made-up floor",
                  "1 - 1.0e-06", "2 in p1/rows_hold[cpu-nano-m1]"):
        assert words in words
    cells = [text for text in outline.texts("span.cell") if "passed within a budget" in text]
    assert len(cells) == 7
    assert all("≈" in text for text in cells)
    assert outline.tags.count("svg") == 2
    assert any("budget is 1.0e-03" in text for text in outline.texts("figcaption."))
    assert "#0102" not in text  # stand-in colours were replaced


def test_contract_s_backticks_become_code() -> None:
    assert "<code>m=c</code>" in page(fake_evidence.evidence(text="form `m=c` always"))
    assert "one ` alone" in page(fake_evidence.evidence(text="one ` alone"))
