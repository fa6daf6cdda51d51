"""Takes the witness that a user requested, and writes it after every band."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx

from falsifiers.judging.errors import SuiteError
from falsifiers.witness.client import Client, is_sendable_text, open_client, server_root
from falsifiers.witness.rules import quote_text
from falsifiers.witness.sources import SourceOptions, check_options, find_source
from falsifiers.witness.stream import BadResponse
from falsifiers.witness.take import Plan, WitnessTaker

MAX_WIDTH = 256
MAX_PROMPT = 1 << 20
POLL_SECONDS = 0.2
"""Seconds between two attempts to reach the server."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
INVALID = "INVALID-CORRECTNESS"
"""Printed instead of a band's speed if its correctness is not shown."""


@dataclass(frozen=True)
class WitnessRequest:
    """The options of one witness."""

    url: str
    out: Path
    plan: Plan
    source_options: SourceOptions
    api_key: str | None = None
    timeout: float = 300
    wait: float = 0
    """Seconds to wait for the server to list its models."""
    model: str | None = None
    model_file: Path | None = None
    binary: Path | None = None
    commit: str | None = None
    clock: Callable[[], float] = time.perf_counter
    """Returns seconds; a simulated server passes its own clock."""


def run(request: WitnessRequest, tell: Callable[[str], None]) -> dict[str, Any]:
    """Take a witness and write it after every band; raise `SuiteError` for invalid options."""
    check_options(request.source_options)
    if request.model is not None and not is_sendable_text(request.model):
        raise SuiteError("--model is not a name")
    if request.plan.declared_min > request.plan.n_predict:
        raise SuiteError(f"--declared-min {request.plan.declared_min} is more than the "
                         f"{request.plan.n_predict} tokens of --n-predict")
    identity = _build_identity(request)
    write_file(request.out, _to_json({**identity, "bands": []}))  # replaces an older witness
    return asyncio.run(_take(request, identity, tell))


async def _take(request: WitnessRequest, identity: dict[str, Any],
                tell: Callable[[str], None]) -> dict[str, Any]:
    path = tuple(request.source_options.field.split(".")) if request.source_options.field else ()
    async with open_client(request.url, api_key=request.api_key, timeout=request.timeout,
                           field_path=path, clock=request.clock) as client:
        client.model = await _choose_model(client, request.model, request.wait)
        model = _model_identity(client.model, request.model_file, identity.pop("model_sha256"))
        plan = replace(request.plan, identity={**identity, "model": model})
        taker = WitnessTaker(plan, client, await find_source(request.source_options, client))

        def write_band(band: dict[str, Any]) -> None:
            write_file(request.out, _to_json(taker.witness))
            tell(format_band(band))

        await taker.run(write_band)
    return taker.witness


async def _choose_model(client: Client, wanted: str | None, wait: float) -> str:
    """Return the model to request: the named one, else the only one listed, else none."""
    offered = await _list_models(client, wait) if wait or wanted is None else []
    if wanted is not None or not offered:
        return wanted or ""  # the first request shows whether the server answers
    if len(offered) > 1:
        raise SuiteError(f"the server offers {len(offered)} models, such as "
                         f"{quote_text(offered[0])}; choose one with --model")
    return offered[0]


async def _list_models(client: Client, wait: float) -> list[str]:
    """Return the models that the server lists within `wait` seconds, or an empty list."""
    late = time.monotonic() + wait
    while True:
        try:
            return await client.list_models()
        except BadResponse:
            if time.monotonic() >= late:
                return []
        await asyncio.sleep(POLL_SECONDS)


def _model_identity(served: str, file: Path | None, sha256: str | None) -> dict[str, str | None]:
    """Return the model's name and digest; the file name that the server reports has priority."""
    name = served.replace("\\", "/").split("/")[-1]
    if file is None or (name.lower().endswith(".gguf") and name != file.name):
        return {"path": name or None, "sha256": None, "served": served}
    return {"path": file.name, "sha256": sha256, "served": served}


def _build_identity(request: WitnessRequest) -> dict[str, Any]:
    host = httpx.URL(server_root(request.url)).host
    versions = {"python": platform.python_version(), "httpx": httpx.__version__}
    try:
        versions["rowtwin"] = metadata.version("rowtwin")
    except metadata.PackageNotFoundError:
        versions["rowtwin"] = "a checkout that is not installed"
    return {"host": platform.node() if host in LOOPBACK else host, "commit": request.commit,
            "binary_sha256": _hash_file("--binary", request.binary),
            "model_sha256": _hash_file("--model-file", request.model_file), "versions": versions}


def _hash_file(option: str, path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        if not path.is_file():
            raise SuiteError(f"{option} {path}: this is not a file")
        with path.open("rb") as source:
            return hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise SuiteError(f"{option} {path}: {(error.strerror or str(error)).lower()}") from None


def parse_widths(text: str) -> tuple[int, ...]:
    """Return the widths in a list such as `1,4`; raise `SuiteError` for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= len(part) <= 4 for part in parts) \
            or not all(1 <= int(part) <= MAX_WIDTH for part in parts):
        raise SuiteError(f"--c {quote_text(text)} is not a list of widths from 1 to {MAX_WIDTH}, "
                         "such as 1,4,8,16")
    return tuple(sorted({int(part) for part in parts}))


def read_prompt(text: str | None, path: Path | None) -> str | None:
    """Return the prompt, as passed or from a file; None without either."""
    if text is not None and path is not None:
        raise SuiteError("give one of --prompt and --prompt-file")
    if path is not None:
        try:
            with path.open("rb") as source:
                text = source.read(MAX_PROMPT + 1).decode("utf-8")
        except OSError as error:
            raise SuiteError(f"--prompt-file {path}: {(error.strerror or '').lower()}") from None
        except UnicodeDecodeError:
            raise SuiteError(f"--prompt-file {path}: this is not UTF-8") from None
    if text is not None and (not is_sendable_text(text) or len(text) > MAX_PROMPT):
        raise SuiteError(f"the prompt is empty, no Unicode text, or above {MAX_PROMPT >> 20} MiB")
    return text


def _to_json(witness: dict[str, Any]) -> str:
    return json.dumps(witness, indent=1, allow_nan=False) + "\n"


def write_file(path: Path, text: str) -> None:
    """Write a file atomically; raise `SuiteError` if it cannot be written."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a terminal or a pipe is not replaced
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path} cannot be written: "
                         f"{getattr(error, 'strerror', None) or error}") from None


def format_band(band: dict[str, Any]) -> str:
    """Return a band's lines for the terminal."""
    least, at = band["declared_min"], band["divergence_at"]
    m = band["m_formed"]
    agreed = "nothing compared" if at is None else f"agrees to {at} (at least {least})"
    line = f"c={band['c']:<4}{band['result']:<13} m={'?' if m is None else m:<3} {agreed:<26}"
    return f"{line}  {format_speed(band)}" + (f"\n      {band['reason']}" if band["reason"] else "")


def format_speed(band: dict[str, Any]) -> str:
    """Return a band's speed in words; only a correct band has one."""
    if not band.get("wall_s"):
        return f"speed: {INVALID}"
    rate, index = band["decode_tok_s"], band.get("index")
    words = "rate unmeasured" if rate is None else f"{rate:.1f} tokens/s a request"
    if index:
        words += (f", serialization {index['serialization_index']:.2f} = path "
                  f"{index['path_penalty']:.2f} x scaling {index['scaling_index']:.2f}")
    return words


def exit_code(bands: Sequence[dict[str, Any]]) -> int:
    """Return 1 if a band failed, else 2 if one did not pass, else 0."""
    words = {band["result"] for band in bands}
    return 1 if "FAIL" in words else 2 if words != {"PASS"} else 0

