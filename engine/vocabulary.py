"""A vocabulary for generated models: 256 bytes, their merges, then control tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, product

from engine.errors import InputError

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Token types as the format numbers them."""
SPECIAL_TOKENS = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL,
           "<|vision_pad|>": CONTROL, "<think>": USER_DEFINED, "</think>": USER_DEFINED}
END_TOKEN, PAD_TOKEN = "<|im_end|>", "<|vision_pad|>"
WORDS = ("the of and to in is that it was for on are as with his they at be this from have or by "
         "one had not but what all were when we there can an your which their said if do will each "
         "about how up out them then she many some so these would other into has more her two like "
         "him see time could no make than first been its who now people my made over did down only "
         "way find use may water long little very after words called just where most know")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their ids, their types, and merges in the order of their rank."""

    tokens: list[str]
    types: list[int]
    merges: list[str]


def byte_letters() -> dict[int, str]:
    """Return the printable letter that stands for each byte in byte-level vocabularies."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {b: chr(b) for b in shown} | {b: chr(256 + n) for n, b in enumerate(hidden)}


def build_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of `size` tokens; each merge joins an earlier token and one byte."""
    wanted = size - 256 - len(SPECIAL_TOKENS)
    if wanted < 0:
        raise InputError(f"a vocabulary of {size} tokens is too small: at least "
                         f"{256 + len(SPECIAL_TOKENS)} are needed")
    letters = byte_letters()
    known = dict.fromkeys(letters[b] for b in sorted(letters, key=lambda b: letters[b]))
    merges: list[str] = []
    for text in _merge_candidates(letters):
        if len(merges) == wanted:
            break
        if text not in known:
            known[text] = None
            merges.append(f"{text[:-1]} {text[-1]}")
    types = [NORMAL] * len(known) + list(SPECIAL_TOKENS.values())
    return Vocabulary([*known, *SPECIAL_TOKENS], types, merges)


def _merge_candidates(letters: dict[int, str]) -> Iterator[str]:
    """Yield prefixes of words, then all strings; each follows its own prefix."""
    for word in WORDS.split():
        for text in (letters[ord(" ")] + word, word):
            yield from (text[:end] for end in range(2, len(text) + 1))
    order = [*b" etaoinshrdlucmfwypvbgkjqxz", *range(256)]
    alphabet = list(dict.fromkeys(letters[b] for b in order))
    for length in count(2):
        yield from ("".join(text) for text in product(alphabet, repeat=length))
