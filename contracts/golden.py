"""Golden data: logits of an independent implementation, and known answers of our own arithmetic.

For each test model `<name>.safetensors` holds tokens i32[prompts, tokens] and logits
f32[prompts, tokens, vocab] with their provenance; `known.json` holds the sha256 of our own logits'
bits at every step. `rowtwin golden make` remakes both, `rowtwin golden check` compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from contracts.schema import ContractError

FOLDER = Path(__file__).parent / "golden"
MODELS = ("nano", "nano-tied", "tiny", "tiny-f32")
PROMPTS, TOKENS = 3, 70


@dataclass(frozen=True)
class Golden:
    """One model's goldens."""

    model: str
    file_sha256: str
    """Of the GGUF file that they were made from."""
    tokens: list[list[int]]
    logits: Tensor
    """f32[prompts, tokens, vocab] of the independent implementation."""
    known: list[list[str]]
    """sha256 of our own logits' bits after each token."""
    provenance: dict[str, str]


def digest(logits: Tensor) -> str:
    """Return the sha256 of logits f32[vocab] as little-endian bits, every NaN as 0x7fc00000."""
    plain = torch.where(torch.isnan(logits), torch.nan, logits).cpu().contiguous()
    return hashlib.sha256(plain.numpy().astype("<f4").tobytes()).hexdigest()


def load_golden(model: str, folder: Path = FOLDER) -> Golden:
    """Read one model's goldens; raise `ContractError` when they are missing or do not fit."""
    path = folder / f"{model}.safetensors"
    try:
        known = json.loads((folder / "known.json").read_text())[model]
        with safe_open(path, framework="pt") as file:
            tokens, logits = file.get_tensor("tokens"), file.get_tensor("logits")
            provenance = file.metadata() or {}
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise ContractError(f"{path}: no goldens of {model}: {error}; make them with "
                            f"`rowtwin golden make`") from None
    if tokens.shape != logits.shape[:2] or len(known["steps"]) != len(tokens):
        raise ContractError(f"{path}: goldens of {model} do not fit each other")
    return Golden(model, known["file_sha256"], tokens.tolist(), logits, known["steps"], provenance)


def make_golden(model: str, path: Path, vocab: int, independent: Callable[..., Tensor],
                own: Callable[[Sequence[int]], list[Tensor]], provenance: dict[str, str],
                folder: Path = FOLDER) -> None:
    """Write one model's goldens: `independent(path, prompts)` and `own(prompt)` make the logits."""
    tokens = [prompt_tokens(number, vocab) for number in range(PROMPTS)]
    logits = independent(path, tokens)
    save_file({"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits.contiguous()},
              folder / f"{model}.safetensors",
              metadata={**provenance, "command": "rowtwin golden make"})
    known_file = folder / "known.json"
    known: dict[str, Any] = json.loads(known_file.read_text()) if known_file.exists() else {}
    known[model] = {"file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                    "steps": [[digest(step) for step in own(prompt)] for prompt in tokens]}
    known_file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def prompt_tokens(number: int, vocab: int) -> list[int]:
    """Return the tokens of one golden prompt, the same on every machine."""
    raw = hashlib.shake_256(f"golden {number}".encode()).digest(4 * TOKENS)
    return [int.from_bytes(raw[4 * i:4 * i + 4], "little") % vocab for i in range(TOKENS)]
