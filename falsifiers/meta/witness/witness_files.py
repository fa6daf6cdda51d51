"""Made-up witnesses: one that is admitted, and a table of ones that are not, rule by rule."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

PREFIX = "qwen3.5-4b"
Change = Callable[[dict[str, Any]], object]


def make_band(c: int, **more: Any) -> dict[str, Any]:
    """Return a band that is admitted."""
    return {"c": c, "m_formed": c, "result": "PASS", "declared_min": 64, "divergence_at": 128,
            "intra_agree_to": 128, "max_constant_run": 1, "top2_margin_at_divergence": None,
            "decode_tok_s": 30.0, "reason": None, **more}


def make_witness(**more: Any) -> dict[str, Any]:
    """Return a witness that is admitted, with keys that only other tools write."""
    return {
        "host": "h",
        "commit": "c",
        "binary_sha256": "b",
        "prompt_sha256": "p",
        "model": {"path": "Qwen3.5-4B-Q4_K_M.gguf", "sha256": "m", "size": 3},
        "bands": [make_band(c, gpu="x") for c in (1, 4, 8, 16)],
        "taken": {"by": "another tool"},
        **more,
    }


def with_bands(**by_width: dict[str, Any]) -> dict[str, Any]:
    """Return the good witness with changes to its bands: `c4={"m_formed": 1}`."""
    witness = make_witness()
    for band in witness["bands"]:
        band.update(by_width.get(f"c{band['c']}", {}))
    return witness


def change_witness(change: Change) -> dict[str, Any]:
    """Return the good witness after a change."""
    witness = deepcopy(make_witness())
    change(witness)
    return witness


def drop_key(*path: Any) -> dict[str, Any]:
    """Return the good witness without a key, as named from the top."""
    witness: Any = make_witness()
    inner = witness
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return dict(witness)


def near_tie(margin: float | None, at: int = 63) -> dict[str, Any]:
    """Return what a band says that parted too early."""
    return {"divergence_at": at, "top2_margin_at_divergence": margin}


def witness_of_model(**more: Any) -> dict[str, Any]:
    """Return the good witness of another model."""
    return make_witness(model={"path": "Qwen3.5-4B.gguf", "sha256": "m", **more})


WITNESS_TABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "good": (make_witness(), []),
    "path in a folder": (witness_of_model(path="/models/qwen3.5-4b-q4.gguf"), []),
    "path of another system": (witness_of_model(path="C:\\models\\QWEN3.5-4B.gguf"), []),
    "prefix only inside": (witness_of_model(path="my-qwen3.5-4b.gguf"), ["S1"]),
    "prefix only of the folder": (witness_of_model(path="qwen3.5-4b/llama.gguf"), ["S1"]),
    "path ends in a slash": (witness_of_model(path="qwen3.5-4b/"), ["S1"]),
    "no model": (drop_key("model"), ["S1", "S1"]),
    "model is null": (make_witness(model=None), ["S1", "S1"]),
    "no path": (drop_key("model", "path"), ["S1"]),
    "no sha256": (drop_key("model", "sha256"), ["S1"]),
    "blank sha256": (witness_of_model(sha256="  "), ["S1"]),
    "c=1 absent": (change_witness(lambda w: w["bands"].pop(0)), ["S2"]),
    "c=4 absent": (change_witness(lambda w: w["bands"].pop(1)), ["S2"]),
    "c=8 absent": (change_witness(lambda w: w["bands"].pop(2)), ["S2"]),
    "c=16 absent": (change_witness(lambda w: w["bands"].pop(3)), ["S2"]),
    "another width, odd": (
        change_witness(
            lambda w: w["bands"].append(make_band(2, m_formed=1, result="FAIL", declared_min=1))
        ),
        [],
    ),
    "a width twice": (change_witness(lambda w: w["bands"].append(make_band(8))), ["S2"]),
    "a width twice, the second bad": (
        change_witness(lambda w: w["bands"].append(make_band(8, m_formed=1))),
        ["S2", "S3"],
    ),
    "a width twice, the first bad": (
        change_witness(lambda w: w["bands"].insert(0, make_band(8, m_formed=1))),
        ["S2", "S3"],
    ),
    "c=4 twice, one slow": (
        change_witness(lambda w: w["bands"].append(make_band(4, decode_tok_s=1.0))),
        ["S2"],
    ),
    "a band without a width": (change_witness(lambda w: w["bands"].append({})), ["S2"]),
    "width null": (with_bands(c8={"c": None}), ["S2", "S2"]),
    "never batched": (with_bands(c4={"m_formed": 1}), ["S3"]),
    "batched too wide": (with_bands(c4={"m_formed": 5}), ["S3"]),
    "no batch at c=1": (with_bands(c1={"m_formed": 0}), ["S3"]),
    "m_formed null": (with_bands(c16={"m_formed": None}), ["S3"]),
    "no m_formed": (drop_key("bands", 0, "m_formed"), ["S3"]),
    **{
        f"no {name}": (drop_key(name), ["S4"])
        for name in ("host", "commit", "binary_sha256", "prompt_sha256")
    },
    "host null": (make_witness(host=None), ["S4"]),
    "commit blank": (make_witness(commit=" \t"), ["S4"]),
    "commit of spaces": (make_witness(commit="   "), ["S4"]),
    "host not seen": (make_witness(host="\u200b\x00"), ["S4"]),
    "sha256 not seen": (witness_of_model(sha256="\u2060"), ["S1"]),
    "agrees to the bar": (with_bands(c8={"divergence_at": 64}), []),
    "parts a token early": (with_bands(c8={"divergence_at": 63}), ["S5"]),
    "parts at c=1": (with_bands(c1={"divergence_at": 3}), ["S5"]),
    "margin 0": (with_bands(c8=near_tie(0.0)), []),
    "margin 0.049": (with_bands(c8=near_tie(0.0499)), []),
    "margin 0.05": (with_bands(c8=near_tie(0.05)), ["S5"]),
    "margin negative": (with_bands(c8=near_tie(-0.001)), ["S5"]),
    "margin large": (with_bands(c8=near_tie(2.5)), ["S5"]),
    "margin null": (with_bands(c8=near_tie(None)), ["S5"]),
    "no place": (with_bands(c8=near_tie(0.01, at=-1)), ["S5"]),
    "parts at once, near-tie": (with_bands(c8=near_tie(0.01, at=0)), []),
    "PASS without divergence": (with_bands(c8={"divergence_at": None}), ["S5"]),
    "no declared_min": (drop_key("bands", 2, "declared_min"), ["S5"]),
    "FAIL without divergence": (
        with_bands(c8={"result": "FAIL", "divergence_at": None, "declared_min": None}),
        ["S6"],
    ),
    "FAIL with divergence": (with_bands(c8={"result": "FAIL", "divergence_at": 3}), ["S5", "S6"]),
    "FAIL that agreed": (with_bands(c8={"result": "FAIL"}), ["S6"]),
    "UNMEASURABLE": (with_bands(c16={"result": "UNMEASURABLE"}), ["S6"]),
    "pass in small letters": (with_bands(c16={"result": "pass"}), ["S6"]),
    "no result": (drop_key("bands", 1, "result"), ["S6"]),
    "half the rate": (with_bands(c4={"decode_tok_s": 15.0}), []),
    "less than half the rate": (with_bands(c4={"decode_tok_s": 14.99}), ["S7"]),
    "slow at c=16 alone": (with_bands(c16={"decode_tok_s": 0.1}), []),
    "rate 0 at c=4": (with_bands(c4={"decode_tok_s": 0}), ["S7"]),
    "rate 0 at both": (with_bands(c1={"decode_tok_s": 0}, c4={"decode_tok_s": 0}), ["S7"]),
    "rate negative at c=1": (with_bands(c1={"decode_tok_s": -1}), ["S7"]),
    "rate null at c=1": (with_bands(c1={"decode_tok_s": None}), ["S7"]),
    "no rate at c=4": (drop_key("bands", 1, "decode_tok_s"), ["S7"]),
    "bar below the floor": (with_bands(c4={"declared_min": 63}), ["floor"]),
    "bar of 0": (with_bands(c1={"declared_min": 0}), ["floor"]),
    "bar below nothing": (with_bands(c16={"declared_min": -5}), ["floor"]),
    "bar above the tokens": (with_bands(c16={"declared_min": 129}), ["S5"]),
    "two near-ties": (with_bands(c4=near_tie(0.01), c16=near_tie(0.02)), ["cap"]),
    "three near-ties": (
        with_bands(c4=near_tie(0.01), c8=near_tie(0.01), c16=near_tie(0.02)),
        ["cap"],
    ),
    "near-ties at c=1 and once": (with_bands(c1=near_tie(0.01), c16=near_tie(0.02)), []),
    "margins of bands that agreed": (
        with_bands(
            c4={"top2_margin_at_divergence": 0.01},
            c8={"top2_margin_at_divergence": 0.01},
            c16=near_tie(0.01),
        ),
        [],
    ),
    "a near-tie and a divergence": (with_bands(c4=near_tie(0.01), c16=near_tie(3.0)), ["S5"]),
    "everything": (
        {"bands": [{"c": 4, "declared_min": 1}]},
        ["S1", "S1", "S2", "S2", "S2", "S3", "S4", "S4", "S4", "S4", "S6", "floor"],
    ),
}
"""A witness by what is special about it, with the rules that it breaks in their order."""
