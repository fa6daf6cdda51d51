"""Stored goldens are complete, remade ones are equal, and a flipped bit is found."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import rowtwin
from contracts.golden import GOLDEN_FOLDER, MODELS, PROMPTS, TOKENS, compare_golden, load_golden
from contracts.load import ContractError


@pytest.mark.parametrize("model", MODELS)
def test_stored_goldens_are_complete(model: str) -> None:
    golden = load_golden(model)
    assert golden.logits.shape[:2] == (PROMPTS, TOKENS)
    assert bool(torch.isfinite(golden.logits).all())
    assert [len(steps) for steps in golden.step_digests] == [TOKENS] * PROMPTS
    assert golden.provenance["transformers"]


def test_goldens_remade_by_transformers_equal_the_stored_ones() -> None:
    assert compare_golden("nano", rowtwin.golden_makers(), prompts=1) == []


def test_other_weights_bits_and_logits_are_found() -> None:
    makers = rowtwin.golden_makers()
    other = replace(makers, model_path=lambda name: makers.model_path("nano-tied"),
                    independent_logits=lambda path, prompts: load_golden("nano").logits[:1] + 1e-3,
                    engine_logits=lambda name, prompt: [torch.zeros(4)] * len(prompt))
    faults = " ".join(compare_golden("nano", other, prompts=1))
    assert "model file" in faults
    assert "independent logits" in faults
    assert "from step 0 on" in faults


def flip_low_bit(x: torch.Tensor) -> torch.Tensor:
    """Return a copy with the lowest bit of one value flipped."""
    bits = x.clone().contiguous().view(torch.int32)
    bits.view(-1)[bits.numel() // 2] ^= 1
    return bits.view(x.dtype)


@pytest.mark.parametrize("tensor", ["tokens", "logits"])
def test_one_flipped_bit_of_a_stored_golden_is_found(tensor: str, tmp_path: Path) -> None:
    stored = load_file(GOLDEN_FOLDER / "nano.safetensors")
    shutil.copy(GOLDEN_FOLDER / "known.json", tmp_path)
    save_file(stored, tmp_path / "nano.safetensors")
    assert load_golden("nano", tmp_path).logits.equal(stored["logits"])
    save_file({**stored, tensor: flip_low_bit(stored[tensor])}, tmp_path / "nano.safetensors")
    with pytest.raises(ContractError, match="digest is not the one in known"):
        load_golden("nano", tmp_path)


def test_one_flipped_bit_of_the_engines_logits_is_found() -> None:
    makers = rowtwin.golden_makers()
    right = makers.engine_logits("nano", load_golden("nano").tokens[0])
    wrong = [flip_low_bit(step) if number == 60 else step for number, step in enumerate(right)]
    changed = replace(makers, engine_logits=lambda name, prompt: right,
                      independent_logits=lambda path, prompts: load_golden("nano").logits[:1])
    assert compare_golden("nano", changed, prompts=1) == []
    changed = replace(changed, engine_logits=lambda name, prompt: wrong)
    assert compare_golden("nano", changed, prompts=1) == [
        "the engine's bits of prompt 0 differ from step 60 on"]


def test_goldens_that_are_missing_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="golden make"):
        load_golden("nano", tmp_path)
    stored = load_file(GOLDEN_FOLDER / "nano.safetensors")
    save_file({"tokens": stored["tokens"][:1], "logits": stored["logits"]},
              tmp_path / "nano.safetensors")
    shutil.copy(GOLDEN_FOLDER / "known.json", tmp_path)
    with pytest.raises(ContractError, match="do not fit"):
        load_golden("nano", tmp_path)
    (tmp_path / "known.json").write_text(json.dumps({}))
    with pytest.raises(ContractError, match="no goldens of nano"):
        load_golden("nano", tmp_path)
