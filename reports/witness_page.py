"""The page of a witness: streams over time, agreement and indices, in one file of HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from falsifiers.witness import rules
from falsifiers.witness.run import INVALID, format_speed
from reports import pages, witness_plots

MARKS = {"PASS": "✓", "FAIL": "✕", "UNMEASURABLE": "?"}


def page(witness: Mapping[str, Any]) -> str:
    """Return a witness as a self-contained page; untrusted text is escaped."""
    return pages.fill_template("witness.html", context(witness))


def context(witness: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the template."""
    reasons, bands = rules.judge_witness(witness, rules.MODEL_PREFIX), witness["bands"]
    return {
        "admitted": not reasons, "reasons": reasons, "prefix": rules.MODEL_PREFIX, "marks": MARKS,
        "facts": facts(witness), "invalid": INVALID,
        "bands": [{"band": band, "word": band["result"], "speed": format_speed(band),
                   "streams": witness_plots.stream_plot(band),
                   "agreement": witness_plots.agreement_plot(band)} for band in bands],
        "indices": [band for band in bands if band.get("index")],
        "index_plot": witness_plots.index_plot(bands)}


def facts(witness: Mapping[str, Any]) -> dict[str, str]:
    """Return what was measured, where and with what, in words."""
    model, sampler, reference = witness["model"], witness["sampler"], witness["reference"]
    stable = {True: "the same twice", False: "not the same twice", None: "not measured"}
    rows = {
        "model": model["path"], "model sha256": model["sha256"], "host": witness["host"],
        "server": witness["server"], "commit": witness["commit"],
        "binary sha256": witness["binary_sha256"], "prompt sha256": witness["prompt_sha256"],
        "requested": f"{sampler['n_predict']} greedy tokens, seed {sampler['seed']}, "
                     "end of text ignored",
        "omitted from requests": ", ".join(sampler["left_out"]) or "nothing",
        "reference": f"{reference['tokens']} tokens, {stable[reference['stable']]}",
        "batches reported by": witness["m_formed_from"],
        "versions": ", ".join(f"{name} {value}" for name, value in witness["versions"].items())}
    return {name: "not recorded" if value is None else str(value) for name, value in rows.items()}
