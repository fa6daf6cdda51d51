"""The model's interface: refusals, state, paths, tracing and greedy decoding."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine import generate, testmodels
from engine.candidate import PathEngine, engine_of
from engine.errors import InputError
from engine.model import Model
from engine.path import Path as StepPath
from engine.path import Rows, reference, traced
from engine.state import KV_TYPES, Pool, checkpoint, restore


@pytest.fixture(scope="module")
def model() -> Model:
    return testmodels.load("nano")


@pytest.mark.parametrize(("token", "position", "named"), [
    (-1, 0, "-1"), (509, 0, "509"), (1, 8, "8"), (1, -1, "-1")])
def test_a_refused_token_changes_no_state(model: Model, token: int, position: int,
                                          named: str) -> None:
    state = model.new_state(8)
    before = state.digest()
    with pytest.raises(InputError, match=named):
        model.forward_single(token, state, position)
    assert state.digest() == before


@pytest.mark.parametrize(("tokens", "position", "named"), [
    ([], 0, "empty"), ([1, 2, 509], 0, "509"), ([1] * 9, 0, "9 tokens"), ([1], -1, "-1")])
def test_a_refused_prompt_changes_no_state(model: Model, tokens: list[int], position: int,
                                           named: str) -> None:
    state = model.new_state(8)
    before = state.digest()
    with pytest.raises(InputError, match=named):
        model.prefill(tokens, state, position)
    assert state.digest() == before


@pytest.mark.parametrize(("slots", "capacity", "named"), [
    (0, 8, "0 slots"), (1, 0, "0 tokens"), (1, 1 << 30, str(1 << 30))])
def test_impossible_pools_are_refused(model: Model, slots: int, capacity: int, named: str) -> None:
    with pytest.raises(InputError, match=named):
        Pool(model.config, slots, capacity)


def test_refs_are_views_whose_pointers_find_the_slot(model: Model) -> None:
    pool = model.new_pool(3, 8)
    refs = pool.refs("delta", model.config.gdn_layers[0], [2, 0])
    refs.views[0].fill_(4.0)
    whole = pool.delta[model.config.gdn_layers[0]]
    assert float(whole[2].min()) == 4.0
    assert float(whole[0].abs().max()) == 0.0
    assert int(refs.pointers[0]) - int(refs.pointers[1]) == 2 * whole[0].nbytes
    table = pool.table([2, 0])
    for kind, layer in pool.places:
        one, other = table.refs(kind, layer), pool.refs(kind, layer, [2, 0])
        assert one.pointers.tolist() == other.pointers.tolist()
        assert one.pointers.tolist() == [view.data_ptr() for view in other.views]
    with pytest.raises(InputError, match="slot 3"):
        pool.slot(3)


def test_digest_tells_signed_zeros_apart_and_nans_together(model: Model) -> None:
    state = model.new_state(4)
    plain = state.digest()
    view = state.named()[f"{model.config.gdn_layers[0]}.conv"]
    view[0, 0] = -0.0
    assert state.digest() != plain
    view[0, 0] = float("nan")
    first = state.digest()
    view[0, 0] = torch.tensor(0x7FC00123, dtype=torch.int32).view(torch.float32)
    assert state.digest() == first


def test_a_checkpoint_that_does_not_fit_is_refused(model: Model) -> None:
    large, small = model.new_state(8), model.new_state(4)
    saved = checkpoint(large, 6)
    with pytest.raises(InputError, match="position 6"):
        restore(saved, small)
    with pytest.raises(InputError, match="position 9"):
        checkpoint(large, 9)


def round_to_nearest_even(x: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Return finite values rounded to nearest even in f64, where every step is exact."""
    bits, least, most = (11, -24, 65520.0) if kind == torch.float16 else (8, -133, torch.inf)
    wide = x.double()
    unit = torch.exp2((torch.frexp(wide).exponent - bits).clamp(min=least).double())
    near = torch.round(wide / unit) * unit  # rounds half to even
    return torch.where(near.abs() >= most, near.sign() * torch.inf, near)


@pytest.mark.parametrize("kv", ["f16", "bf16"])
def test_narrow_caches_hold_the_nearest_values_in_half_the_bytes(model: Model, kv: str) -> None:
    kind = KV_TYPES[kv]
    patterns = torch.randint(-2**31, 2**31, (1 << 16,), generator=torch.Generator().manual_seed(3))
    x = patterns.to(torch.int32).view(torch.float32)
    ties = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 65519.0,
                         65520.0, 2.0**-25, 3 * 2.0**-25, 2.0**-134, 3 * 2.0**-134, -0.0])
    x = torch.cat([x[x.isfinite()], ties, -ties])[:, None, None].expand(-1, 1, 256)
    cache = torch.empty(1, len(x), 1, 256, dtype=kind)
    cache[0].copy_(x)  # as `attend` does
    assert torch.equal(cache[0, :, 0, 0].double(), round_to_nearest_even(x[:, 0, 0], kind))
    wide, narrow = (m.new_pool(2, 8) for m in (model, model.with_kv(kv)))
    rows = [sum(t.nbytes for kept in (p.k, p.v) for t in kept.values()) for p in (wide, narrow)]
    assert rows[0] == 2 * rows[1]
    assert wide.nbytes - narrow.nbytes == rows[1]
    assert {t.dtype for kept in (narrow.conv, narrow.delta) for t in kept.values()} == {
        torch.float32}


def test_a_checkpoint_in_another_type_is_refused_and_changes_nothing(model: Model) -> None:
    narrow = model.with_kv("bf16")
    state = narrow.new_state(4)
    narrow.prefill([3, 4], state)
    other, same = model.new_state(4), narrow.new_state(4)
    before = other.digest()
    with pytest.raises(InputError, match="bfloat16 does not fit a pool that keeps it in"):
        restore(checkpoint(state, 2), other)
    assert other.digest() == before
    restore(checkpoint(state, 2), same)
    assert same.digest() == state.digest()


def test_unknown_type_of_keys_and_values_is_refused(model: Model) -> None:
    for refused in (lambda: model.with_kv("f8"), lambda: Pool(model.config, 1, 1, kv="f8")):
        with pytest.raises(InputError, match="'f8' are refused: f32, f16, bf16 are known"):
            refused()


def test_the_reference_path_is_the_oracle_and_takes_one_row(model: Model) -> None:
    pool, state = model.new_pool(2, 8), model.new_state(8)
    want = model.prefill([3, 4], state)
    assert torch.equal(reference().prefill(model, pool, [3, 4], 1), want)
    path = reference()
    again = path.forward_batch_greedy(model, pool, [5], Rows.decode([0], [0]))
    assert again == [int(model.forward_single(5, model.new_state(8), 0).argmax())]
    with pytest.raises(InputError, match="not 2"):
        path.step(model, pool, [1, 2], Rows.decode([0, 1], [1, 2]))


def test_a_trace_names_every_op_of_every_layer(model: Model) -> None:
    seen: list[str] = []
    path = traced(reference(), lambda op, slot, inputs, output: seen.append(op))
    pool = model.new_pool(1, 4)
    path.step(model, pool, [7], Rows.decode([0], [0]))
    assert seen[0] == "embed"
    assert seen[-1] == "head"
    assert {"0.project.attn_qkv", "0.delta_step", "1.attend", "1.rotate.k"} <= set(seen)
    assert len(seen) == len(set(seen))


def test_ordered_products_stay_close_to_exact_ones_and_have_other_bits(model: Model) -> None:
    ordered = model.with_arithmetic("ordered")
    a = model.forward_single(9, model.new_state(2), 0)
    b = ordered.forward_single(9, ordered.new_state(2), 0)
    assert not torch.equal(a, b)
    assert float(torch.nn.functional.cosine_similarity(a, b, dim=0)) > 0.999999
    with pytest.raises(InputError, match="exact-99"):
        model.with_arithmetic("exact-99")


def test_greedy_decoding_stops_at_ends_and_limits(model: Model) -> None:
    tokens = [t.id for t in generate.generate_greedy(model, [1, 2, 3], 6)]
    assert len(tokens) == 6
    assert [
        t.id for t in generate.generate_greedy(model, [1, 2, 3], 6, ends={tokens[2]})
    ] == tokens[:3]
    assert [t.id for t in generate.generate_greedy(model, [1, 2, 3], 1)] == tokens[:1]
    logits = generate.forced_logits(model, [1, 2, 3, *tokens])
    assert [int(row.argmax()) for row in logits[2:-1]] == tokens


def test_log_probabilities_are_those_of_a_softmax(model: Model) -> None:
    token = next(generate.generate_greedy(model, [4, 5], 1))
    row = generate.forced_logits(model, [4, 5])[-1].double()
    assert math.isclose(token.logprob, float(row.log_softmax(0)[token.id]), abs_tol=1e-6)


@pytest.mark.parametrize(("tokens", "limit", "named"), [
    ([], 1, "empty"), ([1], 0, "0 new"), ([1], 1 << 20, "context"), ([999], 1, "999")])
def test_impossible_generations_are_refused(model: Model, tokens: list[int], limit: int,
                                            named: str) -> None:
    with pytest.raises(InputError, match=named):
        list(generate.generate_greedy(model, tokens, limit))


def test_logits_are_written_once_and_never_over_a_file(model: Model, tmp_path: Path) -> None:
    out = tmp_path / "logits.safetensors"
    generate.write_logits(model, [1, 2], out)
    held = load_file(out)
    assert held["logits"].shape == (2, 509)
    assert torch.equal(held["logits"], generate.forced_logits(model, [1, 2]))
    with pytest.raises(InputError, match="exists"):
        generate.write_logits(model, [1, 2], out)
    with pytest.raises(InputError, match="is not a folder"):
        generate.write_logits(model, [1], tmp_path / "no" / "x")


def test_candidates_are_an_engine_or_a_step(model: Model) -> None:
    class Half:
        @staticmethod
        def engine(model: Model) -> object:
            return object()

    class Step:
        @staticmethod
        def step(path: StepPath, *args: object) -> None:
            return None

    assert isinstance(engine_of(reference(), None, model), PathEngine)
    assert isinstance(engine_of(reference(), Step, model), PathEngine)
    with pytest.raises(InputError, match="new_pool"):
        engine_of(reference(), Half, model)
    with pytest.raises(InputError, match="neither"):
        engine_of(reference(), object(), model)


def test_spans_are_each_rows_own_tokens() -> None:
    rows = Rows((4, 0, 2), (7, 0, 3), (2, 1, 3))
    assert rows.spans([1, 2, 3, 4, 5, 6]) == [(4, 7, [1, 2]), (0, 0, [3]), (2, 3, [4, 5, 6])]
    assert rows.slices == [slice(0, 2), slice(2, 3), slice(3, 6)]
    assert rows.of_tokens() == [7, 8, 0, 3, 4, 5]
