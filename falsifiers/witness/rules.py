"""The rules that admit a witness; this module uses only the standard library.

Each rule is a function of the witness and yields a sentence for each violation. `read_witness` has
checked the types of present keys; the rules judge absent ones.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MODEL_PREFIX = "qwen3.5-4b"
"""The default start of the model's file name."""
WIDTHS = (1, 4, 8, 16)
"""The required widths."""
IDENTITY = ("host", "commit", "binary_sha256", "prompt_sha256")
NEAR_TIE = 0.05
"""A top-2 margin below this explains a divergence."""
FLOOR = 64
"""The smallest `declared_min`, so that a witness cannot lower its own bar."""
CONSTANT_RUN = 16
"""So many repeats of one token are garbage, even if the slots agree."""
LEAST_SCALING = 0.5
"""The smallest ratio of a request's decode rate at c=4 to that at c=1."""
MOST_NEAR_TIES = 1

Band = Mapping[str, Any]
Witness = Mapping[str, Any]


@dataclass(frozen=True)
class Reason:
    """One reason to refuse a witness."""

    rule: str
    """S1 to S7, floor or cap."""
    sentence: str


def judge_witness(witness: Witness, prefix: str) -> list[Reason]:
    """Return the reasons to refuse a witness, in rule order; `prefix` starts the model's name."""
    return [Reason(name, sentence) for name, rule in RULES.items()
            for sentence in rule(witness, prefix)]


def is_correct(band: Band) -> bool:
    """Return whether a band is shown to be correct; otherwise it has no speed."""
    return band.get("result") == "PASS" and not any(_agreement_faults(band))


def required_bands(witness: Witness) -> list[Band]:
    """Return all bands of the four widths, narrow ones first."""
    found = [band for band in witness["bands"] if band.get("c") in WIDTHS]
    return sorted(found, key=lambda band: int(band["c"]))


def _check_model(witness: Witness, prefix: str) -> Iterator[str]:
    """S1: the model's file name starts with the prefix, and its digest is present."""
    model = witness.get("model") or {}
    path = model.get("path") or ""
    name = path.replace("\\", "/").split("/")[-1]
    if _is_blank(path):
        yield "the model's file name is absent"
    elif not name.lower().startswith(prefix.lower()):
        yield (f"the model is {quote_text(name)}, whose name does not start with "
               f"{quote_text(prefix)}")
    if _is_blank(model.get("sha256")):
        yield "the model's sha256 is absent"


def _check_widths(witness: Witness, prefix: str) -> Iterator[str]:
    """S2: every width was measured exactly once."""
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
    """S4: host, commit, binary and prompt are recorded."""
    for name in IDENTITY:
        if _is_blank(witness.get(name)):
            yield f"{name} is absent or blank"


def _check_agreement(witness: Witness, prefix: str) -> Iterator[str]:
    """S5: a request gets its m=1 tokens, or a near-tie explains the first difference."""
    for band in required_bands(witness):
        if _has_result_only(band):
            continue
        yield from (f"c={band['c']}: {why}" for why in _agreement_faults(band))


def _has_result_only(band: Band) -> bool:
    return band.get("result") != "PASS" and band.get("divergence_at") is None


def _agreement_faults(band: Band) -> Iterator[str]:
    """Yield the reasons why a band does not show agreement with m=1."""
    least, at = band.get("declared_min"), band.get("divergence_at")
    if least is None:
        yield "declared_min is absent, so no agreement is claimed"
    if at is None:
        yield "divergence_at is absent, so agreement with m=1 is unmeasured"
    if least is None or at is None or at >= least:
        return
    margin = band.get("top2_margin_at_divergence")
    if at < 0:
        yield f"divergence_at is {at}, which is no position in a stream"
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
            word = "absent" if result is None else quote_text(result)
            yield f"c={band['c']}: the result is {word}, not PASS"


def _check_scaling(witness: Witness, prefix: str) -> Iterator[str]:
    """S7: a request decodes at c=4 at half or more of its rate at c=1."""
    ones, fours = ([band for band in required_bands(witness) if band["c"] == c] for c in (1, 4))
    if len(ones) != 1 or len(fours) != 1:
        return
    solo, batched = (bands[0].get("decode_tok_s") for bands in (ones, fours))
    unmeasured = [f"c={c}" for c, rate in ((1, solo), (4, batched)) if rate is None or rate <= 0]
    if unmeasured or solo is None or batched is None:
        yield f"the decode rate of a request is unmeasured at {' and '.join(unmeasured)}"
    elif batched < LEAST_SCALING * solo:
        yield (f"a request decodes {batched:g} tokens/s at c=4 and {solo:g} at c=1, which is less "
               f"than {LEAST_SCALING:g} of its rate: the batch is served in turns")


def _check_floor(witness: Witness, prefix: str) -> Iterator[str]:
    """Floor: no band lowers its own bar."""
    for band in required_bands(witness):
        least = band.get("declared_min")
        if least is not None and least < FLOOR:
            yield f"c={band['c']}: declared_min is {least}, below {FLOOR}"


def _check_cap(witness: Witness, prefix: str) -> Iterator[str]:
    """Cap: one near-tie may be chance; more show a difference in arithmetic."""
    tied = sorted({band["c"] for band in required_bands(witness)
                   if band["c"] > 1 and passes_by_near_tie(band)})
    if len(tied) > MOST_NEAR_TIES:
        yield (f"{_join_widths(tied)} are each admitted as a near-tie, but at most "
               f"{MOST_NEAR_TIES} may be")


def passes_by_near_tie(band: Band) -> bool:
    """Return whether a band differs before `declared_min` and passes only by its margin."""
    least, at = band.get("declared_min"), band.get("divergence_at")
    return least is not None and at is not None and at < least and not any(_agreement_faults(band))


def _join_widths(widths: Sequence[int]) -> str:
    return " and ".join(f"c={c}" for c in widths)


def _is_blank(text: str | None) -> bool:
    """Return whether a text has no visible character."""
    return text is None or not any(map(_is_visible, text))


def _is_visible(character: str) -> bool:
    return character.isprintable() and not character.isspace()


def quote_text(text: str) -> str:
    """Return an untrusted text in quotes, cut to one line, with control characters escaped."""
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
