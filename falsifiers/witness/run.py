"""From what a user asked for to a witness in a file, whole or in part."""

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
"""Seconds between two looks at whether the server is up."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
INVALID = "INVALID-CORRECTNESS"
"""Stands where the speed of a band would, when its correctness is not shown."""


@dataclass(frozen=True)
class WitnessRequest:
    """One witness to be taken."""

    url: str
    out: Path
    plan: Plan
    source_options: SourceOptions
    api_key: str | None = None
    timeout: float = 300
    wait: float = 0
    """Seconds that the server may take until it lists its models."""
    model: str | None = None
    model_file: Path | None = None
    binary: Path | None = None
    commit: str | None = None
    clock: Callable[[], float] = time.perf_counter
    """Tells the seconds; a simulated server brings its own."""


def run(asked: WitnessRequest, tell: Callable[[str], None]) -> dict[str, Any]:
    """Take a witness and write it after every band; raise `SuiteError` on bad use."""
    check_options(asked.source_options)
    if asked.model is not None and not is_sendable_text(asked.model):
        raise SuiteError("--model is not a name")
    if asked.plan.declared_min > asked.plan.n_predict:
        raise SuiteError(f"--declared-min {asked.plan.declared_min} is more than the "
                         f"{asked.plan.n_predict} tokens of --n-predict")
    identity = _build_identity(asked)
    write_file(
        asked.out, _to_json({**identity, "bands": []})
    )  # an older witness must not outlive this
    return asyncio.run(_take(asked, identity, tell))


async def _take(asked: WitnessRequest, identity: dict[str, Any],
                tell: Callable[[str], None]) -> dict[str, Any]:
    path = tuple(asked.source_options.field.split(".")) if asked.source_options.field else ()
    async with open_client(asked.url, api_key=asked.api_key, timeout=asked.timeout,
                         field_path=path, clock=asked.clock) as client:
        client.model = await _choose_model(client, asked.model, asked.wait)
        model = _model_identity(client.model, asked.model_file, identity.pop("model_sha256"))
        plan = replace(asked.plan, identity={**identity, "model": model})
        taking = WitnessTaker(plan, client, await find_source(asked.source_options, client))

        def keep(band: dict[str, Any]) -> None:
            write_file(asked.out, _to_json(taking.witness))
            tell(format_band(band))

        await taking.run(keep)
    return taking.witness


async def _choose_model(client: Client, wanted: str | None, wait: float) -> str:
    """Return the model to ask for: the one wanted, else the only one, else none by name."""
    offered = await _list_models(client, wait) if wait or wanted is None else []
    if wanted is not None or not offered:
        return wanted or ""  # the requests themselves will show whether the server answers
    if len(offered) > 1:
        raise SuiteError(
            f"the server offers {len(offered)} models, such as {quote_text(offered[0])}; "
            "choose one with --model"
        )
    return offered[0]


async def _list_models(client: Client, wait: float) -> list[str]:
    """Return the models that the server lists within some seconds, or none."""
    late = time.monotonic() + wait
    while True:
        try:
            return await client.list_models()
        except BadResponse:
            if time.monotonic() >= late:
                return []
        await asyncio.sleep(POLL_SECONDS)


def _model_identity(served: str, file: Path | None, sha256: str | None) -> dict[str, str | None]:
    """Return the model's name and digest; the server's own word on the file's name counts."""
    name = served.replace("\\", "/").split("/")[-1]
    if file is None or (name.lower().endswith(".gguf") and name != file.name):
        return {"path": name or None, "sha256": None, "served": served}
    return {"path": file.name, "sha256": sha256, "served": served}


def _build_identity(asked: WitnessRequest) -> dict[str, Any]:
    host = httpx.URL(server_root(asked.url)).host
    versions = {"python": platform.python_version(), "httpx": httpx.__version__}
    try:
        versions["rowtwin"] = metadata.version("rowtwin")
    except metadata.PackageNotFoundError:
        versions["rowtwin"] = "a checkout that is not installed"
    return {"host": platform.node() if host in LOOPBACK else host, "commit": asked.commit,
            "binary_sha256": _hash_file("--binary", asked.binary),
            "model_sha256": _hash_file("--model-file", asked.model_file), "versions": versions}


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
        raise SuiteError(
            f"--c {quote_text(text)} is not a list of widths from 1 to {MAX_WIDTH}, such as "
            "1,4,8,16"
        )
    return tuple(sorted({int(part) for part in parts}))


def read_prompt(text: str | None, path: Path | None) -> str | None:
    """Return the prompt given, by itself or in a file; None when neither is."""
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
    """Write a file whole or not at all; raise `SuiteError` when it cannot be."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a terminal or a pipe is not replaced
            return
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path} cannot be written: "
                         f"{getattr(error, 'strerror', None) or error}") from None


def format_band(band: dict[str, Any]) -> str:
    """Return what is said of a band on the terminal."""
    least, at = band["declared_min"], band["divergence_at"]
    m = band["m_formed"]
    agreed = "nothing compared" if at is None else f"agrees to {at} (at least {least})"
    told = f"c={band['c']:<4}{band['result']:<13} m={'?' if m is None else m:<3} {agreed:<26}"
    return (
        told + "  " + format_speed(band) + (f"\n      {band['reason']}" if band["reason"] else "")
    )


def format_speed(band: dict[str, Any]) -> str:
    """Return a band's speed in words, which only a correct band has."""
    if not band.get("wall_s"):
        return f"speed: {INVALID}"
    rate, index = band["decode_tok_s"], band.get("index")
    words = "rate unmeasured" if rate is None else f"{rate:.1f} tokens/s a request"
    if index:
        words += (f", serialization {index['serialization_index']:.2f} = path "
                  f"{index['path_penalty']:.2f} x scaling {index['scaling_index']:.2f}")
    return words


def exit_code(bands: Sequence[dict[str, Any]]) -> int:
    """Return 1 if a band failed, else 2 if one cannot be told, else 0."""
    words = {band["result"] for band in bands}
    return 1 if "FAIL" in words else 2 if words != {"PASS"} else 0

