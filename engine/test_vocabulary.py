"""Generated vocabularies have valid merges, and draws have their recorded bits."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from engine import draw
from engine.errors import InputError
from engine.vocabulary import SPECIAL_TOKENS, build_vocabulary, byte_letters


def test_bytes_have_the_letters_that_byte_level_tokenizers_give_them() -> None:
    letters = byte_letters()
    assert sorted(letters) == list(range(256))
    assert set(letters.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    for text in ("A \n\t~", "é", "ß\x00"):
        raw = "".join(letters[b] for b in text.encode())
        assert pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False
                                        ).pre_tokenize_str(text)[0][0] == raw


@pytest.mark.parametrize("size", [262, 263, 509, 1021, 70000])
def test_a_vocabulary_has_its_size_and_merges_of_earlier_tokens(size: int) -> None:
    words = build_vocabulary(size)
    assert len(words.tokens) == len(words.types) == len(set(words.tokens)) == size
    assert len(words.merges) == size - 256 - len(SPECIAL_TOKENS)
    known = set(words.tokens[:256])
    for merge, token in zip(words.merges, words.tokens[256:], strict=False):
        left, right = merge.split(" ")
        assert left in known
        assert right in known
        assert left + right == token
        known.add(token)


def test_a_vocabulary_too_small_for_all_bytes_is_refused() -> None:
    with pytest.raises(InputError, match="261 tokens is too small: at least 262"):
        build_vocabulary(261)


def short_digest(x: NDArray[Any]) -> str:
    """Return the beginning of the digest of an array's bytes."""
    return hashlib.sha256(x.tobytes()).hexdigest()[:16]


def test_draws_have_the_bits_written_down() -> None:
    assert short_digest(draw.random_bytes("a stream", 1001)) == "81187a99b21a094a"
    assert short_digest(draw.gaussian("a stream", 7, 11)) == "456cc03915dcc524"
    assert short_digest(draw.uniform("a stream", 7, 11, -2, 3)) == "5a2d343ff57bb8ef"


def test_gaussian_draws_have_mean_0_and_deviation_1_and_use_all_their_bits() -> None:
    x = draw.gaussian("another stream", 500, 400).astype(float)
    assert abs(x.mean()) < 5 / np.sqrt(x.size)
    assert abs(x.std() - 1) < 0.01
    assert abs((x**4).mean() - 2.7) < 0.05  # four uniform parts: a little lighter than normal
    assert np.abs(np.corrcoef(x[:-1].ravel(), x[1:].ravel())[0, 1]) < 0.01


def test_even_draws_fill_their_range_and_stay_below_its_end() -> None:
    x = draw.uniform("a third stream", 100, 1000, 0.5, 1.5)
    assert 0.5 <= x.min() < 0.501
    assert 1.499 < x.max() < 1.5
    assert abs(float(x.mean()) - 1) < 0.01
