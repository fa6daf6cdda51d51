"""The page of a witness: sound, self-contained, escaped, and silent on a wrong band's speed."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from falsifiers.witness.band_checks import Arm, BandRun, build_band
from falsifiers.witness.index import add_indices
from falsifiers.witness.stream import Stream, Token
from reports import fake_evidence, witness_plots
from reports.outline import Outline
from reports.witness_page import page


def make_stream(prompt: int, wrong: bool = False) -> Stream:
    """Return a fake live stream of 64 tokens, one every 10 ms."""
    names = [f"{prompt}.{i}" for i in range(64)]
    names[9] = "odd" if wrong else names[9]
    return Stream(0.0, 0.64, [Token(name) for name in names], [0.01 * (i + 1) for i in range(64)],
                  "length", is_event_stream=True)


def make_band(c: int, wrong: bool = False) -> dict[str, Any]:
    """Return a band of c slots, the last of them wrong if so asked."""
    prompts = list(range(c))
    arms = [Arm("identical", [-1] * c, [make_stream(-1, wrong and i == c - 1) for i in range(c)],
                0.0, 0.65, c)]
    if c > 1:
        arms += [Arm(name, order, [make_stream(p) for p in order], 0.0, 0.65, c)
                 for name, order in (("forward", prompts), ("reversed", prompts[::-1]))]
    return build_band(
        BandRun(c, 64, make_stream(-1), [make_stream(p) for p in prompts if c > 1], arms)
    )


def make_witness(bands: list[dict[str, Any]], word: str | None = "x") -> dict[str, Any]:
    """Return a fake witness; `word` is put in place of every untrusted text."""
    add_indices(bands, [0.6])
    return {"host": word, "commit": word, "binary_sha256": word, "prompt_sha256": word,
            "model": {"path": f"Qwen3.5-4B{word or ''}", "sha256": word}, "server": word,
            "m_formed_from": word, "versions": {"python": word}, "bands": bands,
            "sampler": {"n_predict": 64, "seed": 0, "left_out": [word] if word else []},
            "reference": {"tokens": 64, "stable": True}}


def empty_bands() -> list[dict[str, Any]]:
    return [
        build_band(BandRun(c, 64, Stream(), [], [])) | {"result": "UNMEASURABLE"} for c in (1, 4)
    ]


def hostile_witness() -> dict[str, Any]:
    witness = make_witness([make_band(1), make_band(4, wrong=True)], fake_evidence.HOSTILE_TEXT)
    witness["bands"][1]["reason"] = fake_evidence.HOSTILE_TEXT
    return witness


PAGES = {"green": lambda: make_witness([make_band(c) for c in (1, 4, 8, 16)]),
         "red": lambda: make_witness([make_band(1), make_band(4, wrong=True)], "/x"),
         "empty": lambda: make_witness(empty_bands(), None), "hostile": hostile_witness}


@cache
def page_text(name: str) -> str:
    return page(PAGES[name]())


@pytest.mark.parametrize("name", PAGES)
def test_page_is_sound_and_needs_nothing_but_itself(name: str) -> None:
    text = page_text(name)
    outline = Outline(text)
    assert text.lstrip().startswith("<!doctype html>")
    assert outline.open == []
    assert [found for found, n in Counter(outline.ids).items() if n > 1] == []
    levels = [int(tag[1]) for tag in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert {link for link in outline.links if not link.startswith("#")} == {"data:,"}
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert not {"script", "iframe", "object", "embed", "base", "img"} & set(outline.tags)
    assert outline.tags.count("table") == outline.tags.count("caption")
    assert sum(pair == ("role", "img") for pair in outline.attributes) == outline.tags.count("svg")


def test_green_page_draws_every_stream_and_every_index() -> None:
    outline = Outline(page_text("green"))
    assert outline.texts("h1.")[0].startswith("✓ ADMISSIBLE")
    assert outline.tags.count("svg") == 2 * 4 + 1
    paths = [value for name, value in outline.attributes if name == "d" and value]
    assert sum(path.count("v8") == 64 for path in paths) == 1 + 4 + 8 + 16
    assert len(outline.texts("span.cell")) == 2 * (4 + 8 + 16)


def test_red_page_has_no_speed_of_a_wrong_band() -> None:
    text = page_text("red")
    words = " ".join(Outline(text).texts("section."))
    assert Outline(text).texts("h1.")[0].startswith("✕ NOT ADMISSIBLE")
    assert "slot 3 differs from slot 0 at token 9" in words
    assert words.count("INVALID-CORRECTNESS") == 3
    assert words.count("tokens/s a request") == 1
    assert "c=4 : each mark" not in words.replace("c=4:", "c=4 :")


def test_page_of_an_empty_witness_says_so() -> None:
    words = " ".join(Outline(page_text("empty")).texts("section."))
    assert words.count("Nothing was compared.") == 2
    assert "No index is shown" in words
    assert "not recorded" in words


def test_hostile_words_change_no_element_of_the_page() -> None:
    assert Counter(Outline(page_text("hostile")).tags) == Counter(Outline(page_text("red")).tags)
    assert "<script" not in page_text("hostile")


@pytest.mark.parametrize("most", [0.003, 1.0, 7.5, 64, 100, 12_345.6])
def test_axes_have_a_few_round_marks(most: float) -> None:
    ticks = witness_plots.ticks(most)
    assert ticks[0] == 0
    assert ticks[-1] <= most
    assert 3 <= len(ticks) <= 8
