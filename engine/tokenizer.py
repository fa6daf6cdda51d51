"""Text to token ids and back, by the byte-level BPE in a file.

Text is not normalised: decoding encoded text returns the same text. (The original Python tokenizer
applies NFC first; other GGUF readers do not.)
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from engine.errors import InputError
from engine.vocabulary import CONTROL, USER_DEFINED, byte_letters

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Fast

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
           r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
"""The pre-tokenizer `qwen35`: merges never cross the pieces it finds."""
END_OF_TEXT = "<|endoftext|>"
"""Ends a text, although the metadata do not name it."""


class Tokenizer:
    """The vocabulary of one file."""

    def __init__(self, tokens: list[str], types: list[int], merges: list[str], eos: int,
                 chat_template: str | None = None) -> None:
        self._ids = _index_tokens(tokens)
        if len(types) != len(tokens):
            raise InputError(f"the vocabulary has {len(tokens)} tokens, but {len(types)} types")
        if not 0 <= eos < len(tokens):
            raise InputError(f"the end token {eos} is outside the vocabulary of {len(tokens)}")
        self.tokens, self.types, self.chat_template = tokens, types, chat_template
        self.end_ids = frozenset({eos, *([self._ids[END_OF_TEXT]] if END_OF_TEXT in self._ids
                                      else [])})
        """Ids that end a text: the file's end token and `<|endoftext|>`."""
        self._bytes = {letter: byte for byte, letter in byte_letters().items()}
        self._fast = self._build(_parse_merges(merges, self._ids))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], vocab: int) -> Tokenizer:
        """Read a file's tokenizer; `vocab` is the number of embedding rows."""
        for key, want in (("model", "gpt2"), ("pre", "qwen35")):
            got = metadata.get(f"tokenizer.ggml.{key}")
            if got != want:
                raise InputError(f"tokenizer.ggml.{key} must be {want!r}, but is "
                                 f"{_abbreviate(got)}")
        tokens = _metadata_list(metadata, "tokens", str)
        if len(tokens) != vocab:
            raise InputError(f"the file has {len(tokens)} tokens, but {vocab} embedding rows")
        eos = metadata.get("tokenizer.ggml.eos_token_id")
        if type(eos) is not int:
            raise InputError(f"tokenizer.ggml.eos_token_id must be a token id, but is "
                             f"{_abbreviate(eos)}")
        chat = metadata.get("tokenizer.chat_template")
        return cls(tokens, _metadata_list(metadata, "token_type", int),
                   _metadata_list(metadata, "merges", str), eos,
                   chat if isinstance(chat, str) else None)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; control tokens in it are recognised, and none is added."""
        try:  # `encode_batch_fast` releases the GIL, `encode` does not
            (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=False)
            return list(encoding.ids)
        except (UnicodeError, TypeError):
            raise InputError("the text has half of a surrogate pair, which is no character"
                             ) from None

    @cached_property
    def max_token_bytes(self) -> int:
        """The most UTF-8 bytes of a text that one token takes."""
        return max(len(self.piece(token) or text.encode())
                   for token, text in enumerate(self.tokens))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without control tokens; broken UTF-8 becomes U+FFFD."""
        stream = Detokenizer(self)
        return "".join(stream.push(token) for token in ids) + stream.finish()

    def piece(self, token: int) -> bytes:
        """Return the bytes of one id; a control token has none."""
        if not 0 <= token < len(self.tokens):
            raise InputError(f"token {token} is outside the vocabulary of {len(self.tokens)}")
        text, kind = self.tokens[token], self.types[token]
        if kind == CONTROL:
            return b""
        if kind == USER_DEFINED or any(letter not in self._bytes for letter in text):
            return text.encode()
        return bytes(self._bytes[letter] for letter in text)

    def _build(self, merges: list[tuple[str, str]]) -> Fast:
        from tokenizers import AddedToken, Regex, pre_tokenizers
        from tokenizers import Tokenizer as Fast
        from tokenizers.models import BPE

        for byte, letter in byte_letters().items():
            if letter not in self._ids:
                raise InputError(f"the vocabulary has no token for the byte 0x{byte:02x}, so not "
                                 f"every text can be encoded")
        fast = Fast(BPE(vocab=self._ids, merges=merges))
        fast.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        added = [AddedToken(text, special=kind == CONTROL, normalized=False)
                 for text, kind in zip(self.tokens, self.types, strict=True)
                 if kind in (CONTROL, USER_DEFINED)]
        fast.add_tokens(added)
        return fast


class Detokenizer:
    """Turns a stream of ids into text; bytes of an incomplete character wait for the rest."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Add the next id and return the text that it completes, which can be empty."""
        return self._decoder.decode(self._tokenizer.piece(token))

    def finish(self) -> str:
        """End the stream; return U+FFFD if a character was left incomplete."""
        return self._decoder.decode(b"", final=True)


def _metadata_list(metadata: Mapping[str, object], key: str, kind: type) -> list[Any]:
    """Return a metadata list whose entries are all of one kind."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or any(type(entry) is not kind for entry in value):
        raise InputError(f"tokenizer.ggml.{key} must be a list of {kind.__name__}, but is "
                         f"{_abbreviate(value)}")
    return value


def _index_tokens(tokens: list[str]) -> dict[str, int]:
    """Return the id of each token text; refuse an empty or a repeated one."""
    ids = {text: number for number, text in enumerate(tokens)}
    if "" in ids:
        raise InputError(f"token {ids['']} of the vocabulary is empty")
    if len(ids) != len(tokens):
        number, text = next((n, t) for n, t in enumerate(tokens) if ids[t] != n)
        raise InputError(f"tokens {number} and {ids[text]} of the vocabulary are both "
                         f"{_abbreviate(text)}")
    return ids


def _parse_merges(merges: list[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return merges as pairs; raise `InputError` if a part or the result is no token."""
    pairs = []
    for number, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        for text in (left, right, left + right):
            if text not in ids:
                raise InputError(f"merge {number} ({_abbreviate(merge)}) needs the token "
                                 f"{_abbreviate(text)}, which the vocabulary lacks")
        pairs.append((left, right))
    return pairs


def _abbreviate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
