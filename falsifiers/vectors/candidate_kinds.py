"""Kinds of candidate that are not Python: `cmd:PROGRAM` and `vectors:DIR`.

Importing this module registers them with `falsifiers.gate.candidates`. It does not import torch,
because pytest checks a candidate before Triton's mode is fixed. `server:URL` is refused with the
command that judges a server.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from falsifiers.console.cli_app import escape_non_utf8
from falsifiers.gate.candidates import register_kind
from falsifiers.judging.errors import SuiteError
from falsifiers.vectors import manifest

if TYPE_CHECKING:
    from falsifiers.vectors.calls import ExternalOps

KINDS = ("cmd", "vectors", "server")


def check(spec: str) -> None:
    """Raise `SuiteError` when a spec is invalid; run nothing."""
    kind, _, rest = spec.partition(":")
    if escape_non_utf8(spec) != spec:
        raise SuiteError(f"candidate {spec}: a path that is not UTF-8 cannot be stored in a "
                         f"verdict")
    if kind == "server":
        raise SuiteError(f"candidate {spec}: a server is judged over its API, with: rowtwin "
                         f"witness {shlex.quote(rest)}")
    if kind == "vectors":
        manifest.load_manifest(Path(rest).expanduser())
    elif shutil.which(split_command(spec)[0]) is None:
        raise SuiteError(f"candidate {spec}: there is no program {split_command(spec)[0]!r} to run")


def phase_of(spec: str) -> str | None:
    """Return the phase of `vectors:DIR`, or None for a candidate of another kind."""
    kind, _, rest = spec.partition(":")
    if kind != "vectors" or not rest:
        return None
    return manifest.load_manifest(Path(rest).expanduser()).phase


def split_command(spec: str) -> list[str]:
    """Return the program of `cmd:PROGRAM` and its arguments, split as a shell splits them."""
    try:
        found = shlex.split(spec.partition(":")[2])
    except ValueError as error:
        raise SuiteError(f"candidate {spec} cannot be split into words: {error}") from None
    if not found or any("\0" in word for word in found):
        raise SuiteError(f"candidate {spec} names no program")
    return [os.path.expanduser(found[0]), *found[1:]]


def absolute(spec: str) -> str:
    """Return the spec with every word that is a path here made absolute."""
    kind, _, rest = spec.partition(":")
    if kind == "vectors":
        return f"vectors:{os.path.abspath(os.path.expanduser(rest))}"
    if kind != "cmd":
        return spec
    first, *others = split_command(spec)
    if shutil.which(first) and os.sep in first:
        first = os.path.abspath(first)
    return "cmd:" + shlex.join([first, *(os.path.abspath(word) if os.path.exists(word) else word
                                         for word in others)])


def load(spec: str, offer: type[ExternalOps] | None) -> Any:
    """Return a phase's functions, `offer`, answered by a program or by a directory of vectors."""
    from falsifiers.vectors.calls import ExternalOps
    offer = offer or ExternalOps
    if spec.startswith("cmd:"):
        from falsifiers.vectors.program import Program
        if offer.no_program_reason:
            raise SuiteError(f"candidate {spec}: {offer.no_program_reason}, so answer a directory "
                             f"in one process: rowtwin vectors export DIR")
        # absolute, because the program runs in another working directory
        return offer(Program(split_command(absolute(spec)), probe=offer.probe))
    from falsifiers.vectors.exchange import VectorDirectory
    return offer(VectorDirectory(Path(spec.partition(":")[2]).expanduser()))


register_kind(KINDS, sys.modules[__name__])
