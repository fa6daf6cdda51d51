"""The engine's commands: making and inspecting model files, and running one sequence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.errors import InputError

if TYPE_CHECKING:
    from engine.gguf_file import GgufFile

app = typer.Typer(no_args_is_help=True)
model_app = typer.Typer(no_args_is_help=True, help="Make or inspect a GGUF file.")
app.add_typer(model_app, name="model")
KV_OPTION = typer.Option(metavar="f32|f16|bf16", help="Type of stored keys and values.")


@app.callback()
def _root() -> None:
    """Work with models."""


@model_app.command(epilog="Example: rowtwin model make tiny.gguf --shape tiny --quant mixed")
def make(
        out: Annotated[Path, typer.Argument(help="The file to write.")],
        shape: Annotated[str, typer.Option(help="nano, tiny, 0.8b, 4b or 9b.")] = "nano",
        quant: Annotated[str, typer.Option(help="q4_k_m, f32 or mixed.")] = "mixed",
        seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
        layers: Annotated[int | None, typer.Option(help="Layers.")] = None,
        embd: Annotated[int | None, typer.Option(help="Width of the residual stream.")] = None,
        ffn: Annotated[int | None, typer.Option(help="Width of the feed-forward part.")] = None,
        heads: Annotated[int | None, typer.Option(help="Query heads.")] = None,
        kv_heads: Annotated[int | None, typer.Option(help="Attention key-value heads.")] = None,
        key_heads: Annotated[int | None, typer.Option(help="GDN query and key heads.")] = None,
        value_heads: Annotated[int | None, typer.Option(help="GDN value heads.")] = None,
        vocab: Annotated[int | None, typer.Option(help="Tokens.")] = None,
        context: Annotated[int | None, typer.Option(help="The longest sequence.")] = None,
        tied: Annotated[bool | None, typer.Option("--tied/--untied",
                                                  help="Share embedding and head.")] = None,
        force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a complete GGUF file of random weights, the same bytes on every machine.

    Options left out keep the shape's own value.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from engine.make import make_model

    with Progress("writing", BarColumn(), DownloadColumn(), TimeRemainingColumn(),
                  console=_console(stderr=True), transient=True) as bar:
        task = bar.add_task("writing", total=None)
        path = make_model(
            out, shape, quant, seed, force=force, layers=layers, embd=embd, ffn=ffn, heads=heads,
            kv_heads=kv_heads, key_heads=key_heads, value_heads=value_heads, vocab=vocab,
            context=context, tied=tied,
            progress=lambda done, total: bar.update(task, completed=done, total=total))
    typer.echo(f"{path}: {path.stat().st_size:,} bytes")


@model_app.command(epilog="Example: rowtwin model inspect tiny.gguf --json")
def inspect(
        file: Annotated[Path, typer.Argument(help="A GGUF file.")],
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Print a file's config, tensors, weight types and bytes."""
    from engine.gguf_file import open_gguf

    found = describe_model(open_gguf(file))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{file}: {found['bytes']:,} bytes, {found['parameters']:,} parameters, "
               f"{len(found['tensors'])} tensors")
    _print_table("config", ("field", "value"),
                 [(k, _format_value(v)) for k, v in found["config"].items()])
    _print_table("weight types", ("type", "tensors", "weights", "bytes"),
                 [(kind, *(f"{n:,}" for n in counts.values()))
                  for kind, counts in found["types"].items()])
    _print_table("tensors", ("name", "type", "shape", "bytes"),
                 [(t["name"], t["type"], "x".join(map(str, t["shape"])), f"{t['bytes']:,}")
                  for t in found["tensors"]])


@app.command(epilog='Example: rowtwin generate tiny.gguf "the time of" --limit 32')
def generate(
        file: Annotated[Path, typer.Argument(help="A GGUF file.")],
        text: Annotated[str, typer.Argument(help="The text to continue.")],
        limit: Annotated[int, typer.Option(help="The most new tokens.")] = 64,
        ignore_end: Annotated[bool, typer.Option(
            "--ignore-end", help="Continue after an end token.")] = False,
        kv: Annotated[str, KV_OPTION] = "f32",
) -> None:
    """Continue a text greedily; print it as it grows, then the rate."""
    import time

    from engine.generate import check_prompt, generate_greedy
    from engine.gguf_file import open_gguf
    from engine.model import Model
    from engine.tokenizer import Detokenizer, Tokenizer

    limit_threads(file)
    model = Model.load(file).with_kv(kv)
    tokenizer = Tokenizer.from_metadata(open_gguf(file).metadata, model.config.vocab)
    tokens = tokenizer.encode(text)
    check_prompt(model, tokens, limit)
    words, count, started = Detokenizer(tokenizer), 0, time.perf_counter()
    for token in generate_greedy(model, tokens, limit, () if ignore_end else tokenizer.end_ids):
        if token.id not in tokenizer.end_ids:
            typer.echo(words.push(token.id), nl=False)
        count += 1
    typer.echo(words.finish())
    seconds = time.perf_counter() - started
    typer.echo(f"{len(tokens)} prompt tokens and {count} new ones in {seconds:.2f} s: "
               f"{(len(tokens) + count) / seconds:.1f} tokens/s", err=True)


@app.command(epilog="Example: rowtwin logits tiny.gguf --tokens 1,2,3 --out logits.safetensors")
def logits(
        file: Annotated[Path, typer.Argument(help="A GGUF file.")],
        tokens: Annotated[str, typer.Option(help="Token ids, separated by commas.")],
        out: Annotated[Path, typer.Option(help="The safetensors file to write; it must be new.")],
) -> None:
    """Write the logits after each of the given tokens (teacher-forced)."""
    from engine.generate import write_logits
    from engine.model import Model

    ids = parse_token_ids(tokens)
    limit_threads(file)
    write_logits(Model.load(file), ids, out)
    typer.echo(f"{out}: logits of {len(ids)} tokens")


def parse_token_ids(text: str) -> list[int]:
    """Return token ids from text with commas; raise `InputError` for anything else."""
    import re

    parts = text.split(",")
    for part in parts:
        if not re.fullmatch(r" *-?[0-9]{1,9} *", part, re.ASCII):
            shown = part if len(part) <= 40 else f"{part[:37]}..."
            raise InputError(f"--tokens: {shown!r} is not a token id, at most 9 digits; "
                             f"ids are separated by commas")
    return [int(part) for part in parts]


def limit_threads(file: Path) -> None:
    """Run a small model on one thread, which is faster than several that wait for each other."""
    import torch

    if file.is_file() and file.stat().st_size < 1 << 27:
        torch.set_num_threads(1)


def describe_model(file: GgufFile) -> dict[str, Any]:
    """Return what `model inspect` prints; raise `InputError` if the file is no qwen35 model."""
    import dataclasses
    import math

    from engine.config import Config

    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise InputError(f"{file.path}: tensor token_embd.weight is missing")
    config = Config.from_metadata(file.metadata, embedding.shape[0],
                                  "output.weight" not in file.tensors)
    tensors = [{"name": t.name, "type": t.kind, "shape": list(t.shape), "bytes": t.data.nbytes}
               for t in file.tensors.values()]
    types: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        counts = types.setdefault(tensor.kind, {"tensors": 0, "weights": 0, "bytes": 0})
        for key, more in zip(counts, (1, math.prod(tensor.shape), tensor.data.nbytes),
                             strict=True):
            counts[key] += more
    return {"path": str(file.path), "name": file.metadata.get("general.name"), "bytes": file.size,
            "parameters": sum(counts["weights"] for counts in types.values()),
            "config": dataclasses.asdict(config), "types": types, "tensors": tensors}


def _console(*, stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr)


def _format_value(value: object) -> str:
    """Return a config value as text, layer kinds as one letter each."""
    if isinstance(value, tuple | list) and value and all(isinstance(v, bool) for v in value):
        return "".join("G" if v else "A" for v in value) + " (G = GDN, A = attention)"
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table: drawn on a terminal, tab-separated when piped."""
    console = _console()
    if not console.is_terminal:
        typer.echo(f"\n{title}\n" + "\n".join("\t".join(row) for row in [columns, *rows]))
        return
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number and column != "type" else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
