"""The tokenizer round-trips text exactly, streams complete characters, and refuses bad input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import testmodels
from engine.errors import InputError
from engine.gguf_file import open_gguf
from engine.tokenizer import Detokenizer, Tokenizer
from engine.vocabulary import build_vocabulary

WORDS = build_vocabulary(509)
CHARACTERS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def build_tokenizer(**changes: Any) -> Tokenizer:
    """Build the tokenizer of `nano`, with changes."""
    parts: dict[str, Any] = {"tokens": WORDS.tokens, "types": WORDS.types, "merges": WORDS.merges,
                             "eos": WORDS.tokens.index("<|im_end|>")}
    return Tokenizer(**parts | changes)


NANO = build_tokenizer()


def token_texts(ids: list[int]) -> list[str]:
    """Return the vocabulary's spelling of ids."""
    return [NANO.tokens[i] for i in ids]


@given(CHARACTERS)
def test_decoding_gives_the_text_back_to_the_last_character(text: str) -> None:
    assert NANO.decode(NANO.encode(text)) == text


@given(CHARACTERS)
def test_a_stream_gives_the_same_text_and_never_half_a_character(text: str) -> None:
    stream = Detokenizer(NANO)
    parts = [stream.push(token) for token in NANO.encode(text)]
    assert "".join(parts) + stream.finish() == text
    assert all("\ufffd" not in part or "\ufffd" in text for part in parts)


@given(st.lists(st.integers(0, 508), max_size=30))
def test_any_ids_decode_to_what_their_bytes_say(ids: list[int]) -> None:
    data = b"".join(NANO.piece(token) for token in ids)
    assert NANO.decode(ids) == data.decode("utf-8", errors="replace")


@given(CHARACTERS)
def test_no_token_takes_more_bytes_than_the_longest(text: str) -> None:
    assert len(text.encode()) <= NANO.max_token_bytes * len(NANO.encode(text))


def test_longest_token_may_be_a_control_token() -> None:
    assert (
        NANO.max_token_bytes == len("<|vision_pad|>") > max(map(len, map(NANO.piece, range(509))))
    )


def test_merges_are_applied_by_rank() -> None:
    assert token_texts(NANO.encode("the of and")) == ["the", "Ġof", "Ġand"]
    assert token_texts(NANO.encode(" they")) == ["Ġthey"]
    assert token_texts(NANO.encode("thxe")) == ["th", "x", "e"]


@pytest.mark.parametrize(("text", "pieces"), [
    ("it's", ["it", "'s"]), ("IT'S", ["IT", "'S"]), ("12", ["1", "2"]), ("a  b", ["a", " ", " b"]),
    ("a\n\n b", ["a", "\n\n", " b"]), ("x.\n", ["x", ".\n"]), ("(a", ["(a"]), (" !?", [" !?"]),
    ("e\u0301x", ["e\u0301x"]), ("a \t", ["a", " \t"]), ("!\u0301", ["!\u0301"]),
])
def test_text_is_cut_as_the_pre_tokenizer_qwen35_cuts_it(text: str, pieces: list[str]) -> None:
    found = NANO._fast.pre_tokenizer.pre_tokenize_str(text)
    letters = NANO._bytes
    assert [bytes(letters[c] for c in piece).decode() for piece, _ in found] == pieces


def test_text_is_not_normalised() -> None:
    assert NANO.encode("e\u0301") != NANO.encode("\u00e9")


def test_control_tokens_are_known_by_their_text_and_say_nothing() -> None:
    ids = NANO.encode("<|im_start|>the<|im_end|>")
    assert token_texts(ids) == ["<|im_start|>", "the", "<|im_end|>"]
    assert NANO.decode(ids) == "the"


def test_user_defined_tokens_are_known_by_their_text_and_say_it() -> None:
    ids = NANO.encode("<think>the</think>")
    assert token_texts(ids) == ["<think>", "the", "</think>"]
    assert NANO.decode(ids) == "<think>the</think>"


def test_a_character_split_over_tokens_appears_when_it_is_complete() -> None:
    stream = Detokenizer(NANO)
    assert [stream.push(token) for token in NANO.encode("\U0001f600!")] == [
        "", "", "", "\U0001f600", "!"]
    assert stream.finish() == ""
    assert stream.push(NANO.encode("\u00e9")[0]) == ""
    assert stream.finish() == "\ufffd"


def test_the_end_token_and_the_end_of_text_both_end() -> None:
    assert token_texts(sorted(NANO.end_ids)) == ["<|endoftext|>", "<|im_end|>"]
    tokens = [t.replace("<|endoftext|>", "<|other|>") for t in WORDS.tokens]
    assert len(build_tokenizer(tokens=tokens).end_ids) == 1


@pytest.mark.parametrize("name", ["nano", "tiny"])
def test_a_generated_file_has_a_working_tokenizer(name: str) -> None:
    file = open_gguf(testmodels.model_path(name))
    rows = file.tensors["token_embd.weight"].shape[0]
    got = Tokenizer.from_metadata(file.metadata, rows)
    assert got.decode(got.encode("the people use water")) == "the people use water"
    assert got.chat_template is not None
    with pytest.raises(InputError, match=f"{rows} tokens, but 7 embedding rows"):
        Tokenizer.from_metadata(file.metadata, 7)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InputError, match="surrogate"):
        NANO.encode("a\ud800")


@pytest.mark.parametrize("token", [-1, 509])
def test_an_id_outside_the_vocabulary_is_refused_with_its_value(token: int) -> None:
    with pytest.raises(InputError, match=f"token {token} is outside the vocabulary of 509"):
        NANO.decode([token])


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"types": WORDS.types[:-1]}, "509 tokens, but 508 types"),
    ({"eos": 509}, "end token 509 is outside"),
    ({"eos": -1}, "end token -1 is outside"),
    ({"tokens": ["", *WORDS.tokens[1:]]}, "token 0 of the vocabulary is empty"),
    ({"tokens": ["b", *WORDS.tokens[1:]]}, "tokens 0 and .* are both 'b'"),
    ({"tokens": ["no!", *WORDS.tokens[1:]]}, "no token for the byte 0x21"),
    ({"merges": ["q zz"]}, r"merge 0 \('q zz'\) needs the token 'zz'"),
    ({"merges": ["nospace"]}, "merge 0"),
    ({"merges": ["q z"]}, "needs the token 'qz'"),
    ({"merges": ["a b c"]}, "needs the token 'b c'"),
])
def test_a_hostile_vocabulary_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build_tokenizer(**changes)


@pytest.mark.parametrize(("key", "value", "sentence"), [
    ("model", "llama", "must be 'gpt2', but is 'llama'"), ("model", None, "but is None"),
    ("pre", "qwen2", "must be 'qwen35', but is 'qwen2'"),
    ("tokens", None, "tokens must be a list of str"), ("tokens", [1], "tokens must be a list"),
    ("tokens", "abc", "tokens must be a list"), ("token_type", ["1"], "list of int"),
    ("token_type", None, "token_type must be a list"), ("merges", [True], "list of str"),
    ("eos_token_id", None, "eos_token_id must be a token id"),
    ("eos_token_id", True, "eos_token_id must be a token id"),
])
def test_metadata_of_another_kind_are_refused_by_key(key: str, value: object,
                                                     sentence: str) -> None:
    good: dict[str, object] = {"model": "gpt2", "pre": "qwen35", "tokens": WORDS.tokens,
                               "token_type": WORDS.types, "merges": WORDS.merges,
                               "eos_token_id": 500}
    changed = {f"tokenizer.ggml.{k}": v for k, v in (good | {key: value}).items()}
    with pytest.raises(InputError, match=sentence):
        Tokenizer.from_metadata(changed, 1 if key == "tokens" and value == [1] else 509)
