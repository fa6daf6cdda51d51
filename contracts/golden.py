"""Golden data: logits of an independent implementation, and known answers of the engine.

For each test model `<name>.safetensors` holds tokens i32[prompts, tokens] and logits
f32[prompts, tokens, vocab] with their provenance. `known.json` holds the sha256 of both, and that
of the engine's logits at every step. `rowtwin golden make` remakes all, `rowtwin golden check`
compares.
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

from contracts.load import ContractError

GOLDEN_FOLDER = Path(__file__).parent / "golden"
MODELS = ("nano", "nano-tied", "tiny", "tiny-f32")
PROMPTS, TOKENS = 3, 70
LOGITS_TOLERANCE = 1e-6
"""Relative distance that remade independent logits may have; library versions sum differently."""


@dataclass(frozen=True)
class Golden:
    """One model's goldens."""

    model: str
    file_sha256: str
    """sha256 of the GGUF file that the goldens come from."""
    tokens: list[list[int]]
    logits: Tensor
    """f32[prompts, tokens, vocab] of the independent implementation."""
    step_digests: list[list[str]]
    """sha256 of the bits of the engine's logits after each token."""
    provenance: dict[str, str]


def logits_digest(logits: Tensor) -> str:
    """Return the sha256 of logits f32[vocab] as little-endian bits, every NaN as 0x7fc00000."""
    plain = torch.where(torch.isnan(logits), torch.nan, logits).cpu().contiguous()
    return hashlib.sha256(plain.numpy().astype("<f4").tobytes()).hexdigest()


def data_digest(tokens: Tensor, logits: Tensor) -> str:
    """Return the sha256 of the tokens and logits that a golden file holds."""
    total = hashlib.sha256(tokens.numpy().astype("<i4").tobytes())
    total.update(logits.contiguous().numpy().astype("<f4").tobytes())
    return total.hexdigest()


def load_golden(model: str, folder: Path = GOLDEN_FOLDER) -> Golden:
    """Read one model's goldens; raise `ContractError` when they are missing or do not fit."""
    path = folder / f"{model}.safetensors"
    try:
        known = json.loads((folder / "known.json").read_text())[model]
        with safe_open(path, framework="pt") as file:
            tokens, logits = file.get_tensor("tokens"), file.get_tensor("logits")
            provenance = file.metadata() or {}
    except KeyError:
        raise ContractError(f"{folder}: there are no goldens of {model}; create those of a test "
                            f"model with `rowtwin golden make`") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise ContractError(f"{path}: the goldens of {model} cannot be read: {error}; remake "
                            f"them with `rowtwin golden make {model}`") from None
    if tokens.shape != logits.shape[:2] or len(known["steps"]) != len(tokens):
        raise ContractError(f"{path}: tokens, logits and step digests of {model} do not fit each "
                            f"other; remake them with `rowtwin golden make {model}`")
    if known.get("data_sha256") != data_digest(tokens, logits):
        raise ContractError(f"{path}: the tokens or logits have changed: their digest is not the "
                            f"one in known.json")
    return Golden(model, known["file_sha256"], tokens.tolist(), logits, known["steps"], provenance)


@dataclass(frozen=True)
class GoldenMakers:
    """The functions that compute goldens; `rowtwin.golden_makers` returns them."""

    model_path: Callable[[str], Path]
    """The GGUF file of a test model."""
    vocab_size: Callable[[str], int]
    independent_logits: Callable[[Path, Sequence[Sequence[int]]], Tensor]
    """Logits f32[prompts, tokens, vocab] of the independent implementation."""
    engine_logits: Callable[[str, Sequence[int]], list[Tensor]]
    """The engine's logits f32[vocab] after each token."""
    provenance: Callable[[], dict[str, str]]


def make_golden(model: str, makers: GoldenMakers, folder: Path = GOLDEN_FOLDER) -> Path:
    """Write one model's goldens and return the path of the safetensors file."""
    prompts, path = golden_prompts(makers.vocab_size(model)), makers.model_path(model)
    tokens, logits = (torch.tensor(prompts, dtype=torch.int32),
                      makers.independent_logits(path, prompts))
    out = folder / f"{model}.safetensors"
    save_file({"tokens": tokens, "logits": logits.contiguous()}, out,
              metadata={**makers.provenance(), "command": f"rowtwin golden make {model}"})
    out.chmod(0o644)
    known_file = folder / "known.json"
    known: dict[str, Any] = json.loads(known_file.read_text()) if known_file.exists() else {}
    known[model] = {"file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                    "data_sha256": data_digest(tokens, logits),
                    "steps": [[logits_digest(step) for step in makers.engine_logits(model, prompt)]
                              for prompt in prompts]}
    known_file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return out


def compare_golden(model: str, makers: GoldenMakers, prompts: int = PROMPTS) -> list[str]:
    """Return one sentence for each difference between remade and stored goldens.

    Only the first `prompts` prompts are compared.
    """
    golden, path, faults = load_golden(model), makers.model_path(model), []
    if hashlib.sha256(path.read_bytes()).hexdigest() != golden.file_sha256:
        faults.append("the model file differs from the one that the goldens come from")
    if golden.tokens != golden_prompts(makers.vocab_size(model)):
        faults.append("the stored prompts differ from those of this version")
    remade = makers.independent_logits(path, golden.tokens[:prompts]).double()
    stored = golden.logits[:prompts].double()
    distance = float((remade - stored).norm() / stored.norm())
    if not distance < LOGITS_TOLERANCE:
        faults.append(f"the independent logits differ by {distance:.2g} of their norm")
    for number, prompt in enumerate(golden.tokens[:prompts]):
        now = [logits_digest(step) for step in makers.engine_logits(model, prompt)]
        if now != golden.step_digests[number]:
            pairs = zip(now, golden.step_digests[number], strict=True)
            first = next(i for i, (new, old) in enumerate(pairs) if new != old)
            faults.append(f"the engine's bits of prompt {number} differ from step {first} on")
    return faults


def golden_prompts(vocab: int) -> list[list[int]]:
    """Return the prompts of a vocabulary's goldens."""
    return [prompt_tokens(number, vocab) for number in range(PROMPTS)]


def prompt_tokens(number: int, vocab: int) -> list[int]:
    """Return the tokens of one golden prompt, the same on every machine."""
    raw = hashlib.shake_256(f"golden {number}".encode()).digest(4 * TOKENS)
    return [int.from_bytes(raw[4 * i:4 * i + 4], "little") % vocab for i in range(TOKENS)]
