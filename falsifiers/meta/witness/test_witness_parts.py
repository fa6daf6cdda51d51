"""Unit tests of agreement, margins, overlap and indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falsifiers.judging.errors import SuiteError
from falsifiers.witness import index, run
from falsifiers.witness.band_checks import (
    Arm,
    BandRun,
    agreed_tokens,
    build_band,
    find_failures,
    longest_constant_run,
    m_formed,
    streams_overlap,
    token_margin,
    worst_margin,
)
from falsifiers.witness.client import server_root
from falsifiers.witness.stream import Stream, Token


def stream(names: str, start: float = 0.0, step: float = 1.0, lag: float = 0.0,
           **more: Any) -> Stream:
    """Return a stream of one-letter tokens, one a step."""
    times = [start + lag + step * (i + 1) for i in range(len(names))]
    return Stream(**{"started": start, "ended": times[-1] if times else start,
                     "tokens": [Token(name) for name in names], "times": times,
                     "finish_reason": "length", "is_event_stream": True, **more})


@pytest.mark.parametrize(("one", "other", "shared"), [
    ("abc", "abc", 3), ("abc", "abd", 2), ("abc", "xbc", 0), ("abc", "ab", 2), ("", "a", 0)])
def test_agreement_ends_where_streams_differ_or_end(one: str, other: str, shared: int) -> None:
    assert agreed_tokens(one, other) == agreed_tokens(other, one) == shared


@pytest.mark.parametrize(("text", "run"), [("", 0), ("a", 1), ("abab", 1), ("abbbaa", 3),
                                           ("aaaa", 4)])
def test_longest_run_of_one_token(text: str, run: int) -> None:
    assert longest_constant_run(text) == run


@given(text=st.text("ab", max_size=40))
def test_run_is_the_longest_repeat_in_the_text(text: str) -> None:
    run = longest_constant_run(text)
    assert any(letter * run in text for letter in "ab")
    assert not any(letter * (run + 1) in text for letter in "ab")


def test_margin_is_that_of_the_token_that_was_taken() -> None:
    solo = Token("a", -0.5, {"a": -0.5, "b": -0.52, "c": -3.0})
    assert token_margin(solo, Token("b")) == pytest.approx(0.02)
    assert token_margin(solo, Token("c")) == pytest.approx(2.5)
    assert token_margin(solo, Token("d")) is None
    assert token_margin(Token("a"), Token("b")) is None


def tied(*gaps: float | None) -> Stream:
    """Return the stream `aaaa`, whose token b has this margin at each position."""
    return stream("aaaa", tokens=[Token("a", -0.5, {} if gap is None else {"b": -0.5 - gap})
                                  for gap in gaps])


@pytest.mark.parametrize(("streams", "expected"), [
    (["aaaa"], None), (["abaa"], 0.02), (["abaa", "aaba"], 3.0), (["abaa", "aaab"], 0.02),
    (["baaa", "abaa"], None), (["acaa"], None), (["aaab"], None), (["aa"], None)])
def test_one_near_tie_does_not_excuse_another_divergence(streams: list[str],
                                                         expected: float | None) -> None:
    arm = Arm("identical", [-1] * len(streams), [stream(s) for s in streams], 0, 1)
    taken = BandRun(4, 3, tied(None, 0.02, 3.0, None), [], [arm])
    assert worst_margin(taken) == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("streams", "proved"), [
    ([stream("aaaa")], True), ([stream("aaaa"), stream("aaaa")], True),
    ([stream("aaaa"), stream("aaaa", start=3.5)], False),
    ([stream("aaaa"), stream("aaaa", start=3.0)], False),
    ([stream("aaaa"), stream("aaaa", start=2.9)], True),
    ([stream("aaaa", lag=100.0)] * 2, False), ([stream("aaaa", step=0.0)] * 2, False),
    ([stream("aaaa", is_event_stream=False)] * 2, False), ([stream("aaaa"), stream("")], False)])
def test_only_live_streams_prove_overlap(streams: Sequence[Stream], proved: bool) -> None:
    assert streams_overlap(streams) is proved


def test_rate_is_that_of_a_live_stream() -> None:
    assert stream("aaaaa", step=0.5).tokens_per_second == pytest.approx(2.0)
    assert stream("aaaaa", step=0.01, lag=30.0).tokens_per_second is None
    assert stream("a").tokens_per_second is None
    together = stream("aaaa")
    together.times = [1.0, 1.0, 2.0, 2.0]
    assert together.tokens_per_second == pytest.approx(2.0)


@pytest.mark.parametrize(("widths", "expected"), [
    ([4, 4, 4], 4), ([4, 3, 4], 3), ([None, 4], None), ([5, 4], 5), ([0], 0), ([], None)])
def test_width_of_a_band_is_that_of_every_arm(widths: list[int | None],
                                              expected: int | None) -> None:
    arms = [Arm("identical", [], [], 0, 1, m) for m in widths]
    assert m_formed(BandRun(4, 3, Stream(), [], arms)) == expected


def test_band_without_streams_has_every_key() -> None:
    result = build_band(BandRun(4, 64, Stream(), [], []))
    assert (result["m_formed"], result["divergence_at"], result["slots"]) == (None, None, [])


@pytest.mark.parametrize(("run", "expected"), [
    (15, []), (16, ["slot 0 of the identical requests repeats one token 16 times"])])
def test_sixteen_repeats_of_a_token_are_garbage(run: int, expected: list[str]) -> None:
    repeated = stream("ab" * 20 + "c" * run)
    arm = Arm("identical", [-1], [repeated], 0, 1)
    assert list(find_failures(BandRun(1, 4, repeated, [], [arm]))) == expected


# Indices, and what is asked.

WALLS, FAST, TOKENS = {1: [2.0, 2.2, 9.0], 4: [8.8, 8.0, 9.0]}, [2.0, 2.0], {1: 100, 4: 400}


def test_serialization_is_path_penalty_times_scaling() -> None:
    found = index.decompose(4, WALLS, FAST, TOKENS)
    assert found is not None
    assert found["path_penalty"] == pytest.approx(1.1)
    assert found["scaling_index"] == pytest.approx(4.0)
    assert found["serialization_index"] == pytest.approx(4.4)
    assert found["token_index"] == pytest.approx(4 * (100 / 2.2) / (400 / 8.8))


@pytest.mark.parametrize(("walls", "fast"), [
    ({4: [1.0]}, FAST), ({1: [1.0]}, FAST), (WALLS, []), ({1: [0.0], 4: [1.0]}, FAST)])
def test_index_with_a_missing_time_is_none(walls: Any, fast: list[float]) -> None:
    assert index.decompose(4, walls, fast, TOKENS) is None


def test_band_without_walls_gets_no_index() -> None:
    bands = [{"c": 1, "wall_s": [1.0], "tokens": 10}, {"c": 4, "result": "FAIL"}]
    index.add_indices(bands, [1.0])
    assert "index" in bands[0]
    assert "index" not in bands[1]


@pytest.mark.parametrize(("text", "widths"), [
    ("1,4,8,16", (1, 4, 8, 16)), ("16, 4", (4, 16)), ("4,4", (4,)), ("256", (256,))])
def test_widths_are_read_in_order(text: str, widths: tuple[int, ...]) -> None:
    assert run.parse_widths(text) == widths


@pytest.mark.parametrize("text", ["", "0", "257", "4;8", "1,", "-1", "four", "1.5", "²", "9" * 99])
def test_odd_widths_are_refused(text: str) -> None:
    with pytest.raises(SuiteError, match="is not a list of widths"):
        run.parse_widths(text)


@pytest.mark.parametrize(("url", "root"), [
    ("http://h:1", "http://h:1"), ("http://h:1/", "http://h:1"), ("http://h/v1", "http://h"),
    ("https://h/x/v1/", "https://h/x"), ("http://h/?a=b#c", "http://h")])
def test_address_is_that_of_the_server(url: str, root: str) -> None:
    assert server_root(url) == root


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h:99999x", "file:///x",
                                 "http://[::1", "http://a\x00b",
                                 "http://h:65536", "http://h:-1"])
def test_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(SuiteError, match="is not an address"):
        server_root(url)


@pytest.mark.parametrize(("bands", "code"), [
    (["PASS"], 0), (["PASS", "FAIL", "UNMEASURABLE"], 1), (["PASS", "UNMEASURABLE"], 2), ([], 2)])
def test_exit_code_follows_the_worst_band(bands: list[str], code: int) -> None:
    assert run.exit_code([{"result": word} for word in bands]) == code
