"""The rules by which a witness is admitted, and nothing else: standard library alone.

Each rule is a function of the witness and yields one sentence for each thing that breaks it. The
witness has been read by `file.read`, so that what is there has its type; what is absent is judged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MODEL_PREFIX = "qwen3.5-4b"
"""How the model's file name starts, unless another is asked for."""
WIDTHS = (1, 4, 8, 16)
"""The widths that a witness must hold."""
IDENTITY = ("host", "commit", "binary_sha256", "prompt_sha256")
NEAR_TIE = 0.05
"""A top-2 margin below this explains a divergence."""
FLOOR = 64
"""The least `declared_min`, so that a witness cannot set its own bar."""
CONSTANT_RUN = 16
"""As many repeats of one token are garbage, whatever else agrees."""
LEAST_SCALING = 0.5
"""What a request's decode rate must keep at c=4, as a part of that at c=1."""
MOST_NEAR_TIES = 1

Band = Mapping[str, Any]
Witness = Mapping[str, Any]


@dataclass(frozen=True)
class Reason:
    """One thing that keeps a witness from being admitted."""

    rule: str
    """S1 to S7, floor or cap."""
    sentence: str


def judge_witness(witness: Witness, prefix: str) -> list[Reason]:
    """Return why a witness of the model with this name's start is refused, in rule order."""
    return [Reason(name, sentence) for name, rule in RULES.items()
            for sentence in rule(witness, prefix)]


def is_correct(band: Band) -> bool:
    """Tell whether a band's correctness is shown, without which no speed of it may be told."""
    return band.get("result") == "PASS" and not any(_agreement_faults(band))


def required_bands(witness: Witness) -> list[Band]:
    """Return the bands of the four widths, narrow before wide, every copy of one."""
    found = [band for band in witness["bands"] if band.get("c") in WIDTHS]
    return sorted(found, key=lambda band: int(band["c"]))


def _check_model(witness: Witness, prefix: str) -> Iterator[str]:
    """S1: the expected model, by the start of its file's name, and its digest."""
    model = witness.get("model") or {}
    path = model.get("path") or ""
    name = path.replace("\\", "/").split("/")[-1]
    if _is_blank(path):
        yield "the model's file name is absent"
    elif not name.lower().startswith(prefix.lower()):
        yield f"the model is {quote_text(name)}, whose name does not start with {quote_text(prefix)}"
    if _is_blank(model.get("sha256")):
        yield "the model's sha256 is absent"


def _check_widths(witness: Witness, prefix: str) -> Iterator[str]:
    """S2: every width was measured, once."""
    times = Counter(band.get("c") for band in witness["bands"])
    for c in WIDTHS:
        if not times[c]:
            yield f"c={c} was not measured"
        elif times[c] > 1:
            yield f"c={c} is recorded {times[c]} times"
    if times[None]:
        yield "a band does not say its width c"


def _check_batch_width(witness: Witness, prefix: str) -> Iterator[str]:
    """S3: the server formed a batch of the band's width."""
    for band in required_bands(witness):
        c, m = band["c"], band.get("m_formed")
        if m is None:
            yield f"c={c}: m_formed is absent, so no batch is shown"
        elif m != c:
            yield f"c={c}: the server formed batches of {m}, not of {c}"


def _check_identity(witness: Witness, prefix: str) -> Iterator[str]:
    """S4: what was measured, where, and with what, can be told."""
    for name in IDENTITY:
        if _is_blank(witness.get(name)):
            yield f"{name} is absent or blank"


def _check_agreement(witness: Witness, prefix: str) -> Iterator[str]:
    """S5: what a request got is what it gets alone, or a near-tie explains where it parts."""
    for band in required_bands(witness):
        if _has_result_only(band):
            continue
        yield from (f"c={band['c']}: {why}" for why in _agreement_faults(band))


def _has_result_only(band: Band) -> bool:
    return band.get("result") != "PASS" and band.get("divergence_at") is None


def _agreement_faults(band: Band) -> Iterator[str]:
    """Yield why a band's agreement with m=1 is not shown."""
    least, at = band.get("declared_min"), band.get("divergence_at")
    if least is None:
        yield "declared_min is absent, so no agreement is claimed"
    if at is None:
        yield "divergence_at is absent, so agreement with m=1 is unmeasured"
    if least is None or at is None or at >= least:
        return
    margin = band.get("top2_margin_at_divergence")
    if at < 0:
        yield f"divergence_at is {at}, which is no place in a stream"
    elif margin is None:
        yield f"it agrees with m=1 for {at} of {least} tokens, and no near-tie explains why"
    elif not _is_near_tie(margin):
        yield (f"it agrees with m=1 for {at} of {least} tokens, and a margin of {margin:g} is "
               f"not in [0, {NEAR_TIE})")


def _is_near_tie(margin: float) -> bool:
    return 0 <= margin < NEAR_TIE


def _check_results(witness: Witness, prefix: str) -> Iterator[str]:
    """S6: every band passed."""
    for band in required_bands(witness):
        result = band.get("result")
        if result != "PASS":
            told = "absent" if result is None else quote_text(result)
            yield f"c={band['c']}: the result is {told}, not PASS"


def _check_scaling(witness: Witness, prefix: str) -> Iterator[str]:
    """S7: a request's tokens come at least half as fast among four as alone."""
    ones, fours = ([band for band in required_bands(witness) if band["c"] == c] for c in (1, 4))
    if len(ones) != 1 or len(fours) != 1:
        return
    alone, among = (bands[0].get("decode_tok_s") for bands in (ones, fours))
    unmeasured = [f"c={c}" for c, rate in ((1, alone), (4, among)) if rate is None or rate <= 0]
    if unmeasured or alone is None or among is None:
        yield f"the decode rate of a request is unmeasured at {' and '.join(unmeasured)}"
    elif among < LEAST_SCALING * alone:
        yield (f"a request decodes {among:g} tokens/s at c=4 and {alone:g} at c=1, so it keeps "
               f"less than {LEAST_SCALING:g} of its rate: the batch is served in turns")


def _check_floor(witness: Witness, prefix: str) -> Iterator[str]:
    """Floor: no band sets a bar of its own."""
    for band in required_bands(witness):
        least = band.get("declared_min")
        if least is not None and least < FLOOR:
            yield f"c={band['c']}: declared_min is {least}, below {FLOOR}"


def _check_cap(witness: Witness, prefix: str) -> Iterator[str]:
    """Cap: one near-tie is chance, more are a difference in arithmetic."""
    tied = sorted(
        {
            band["c"]
            for band in required_bands(witness)
            if band["c"] > 1 and passes_by_near_tie(band)
        }
    )
    if len(tied) > MOST_NEAR_TIES:
        yield (f"{_join_widths(tied)} are each admitted as a near-tie, but at most "
               f"{MOST_NEAR_TIES} may be")


def passes_by_near_tie(band: Band) -> bool:
    """Tell whether a band parted too early and only its margin admits it."""
    least, at = band.get("declared_min"), band.get("divergence_at")
    return least is not None and at is not None and at < least and not any(_agreement_faults(band))


def _join_widths(widths: Sequence[int]) -> str:
    return " and ".join(f"c={c}" for c in widths)


def _is_blank(text: str | None) -> bool:
    """Tell whether a text shows nothing: white space, or signs that are not seen."""
    return text is None or not any(map(_is_visible, text))


def _is_visible(sign: str) -> bool:
    return sign.isprintable() and not sign.isspace()


def quote_text(text: str) -> str:
    """Return a foreign text in quotes, cut to a line, without what a terminal would obey."""
    return json.dumps(text if len(text) <= 80 else f"{text[:77]}...")


RULES: Mapping[str, Callable[[Witness, str], Iterator[str]]] = {
    "S1": _check_model,
    "S2": _check_widths,
    "S3": _check_batch_width,
    "S4": _check_identity,
    "S5": _check_agreement,
    "S6": _check_results,
    "S7": _check_scaling,
    "floor": _check_floor,
    "cap": _check_cap,
}
