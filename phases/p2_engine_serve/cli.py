"""The command that serves a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.cli import KV_OPTION

if TYPE_CHECKING:
    from phases.p2_engine_serve.service import Service

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Serve."""


@app.command(epilog="Example: rowtwin serve tiny.gguf --slots 16 --port 8000")
def serve(
        file: Annotated[Path, typer.Argument(help="A GGUF file.", metavar="MODEL")],
        slots: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 16,
        port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port.")] = 8000,
        host: Annotated[str, typer.Option(
            help="Address to listen on; the default is reachable from this machine only.",
            )] = "127.0.0.1",
        queue: Annotated[int, typer.Option(min=0, help="Requests that may wait.")] = 64,
        context: Annotated[int, typer.Option(
            min=1, help="Maximum tokens of one request, prompt and reply.")] = 4096,
        chunk: Annotated[int, typer.Option(
            min=1, help="Maximum prompt tokens of a request in one step.")] = 64,
        memory: Annotated[float, typer.Option(
            min=0, max=1 << 20, help="Maximum GiB of state.")] = 16.0,
        prefix_cache_mb: Annotated[int, typer.Option(
            min=0, help="MiB of cached states of earlier prompts.")] = 256,
        api_key: Annotated[str | None, typer.Option(
            envvar="ROWTWIN_API_KEY", help="Bearer token that clients must send.")] = None,
        name: Annotated[str | None, typer.Option(
            help="Name of the model (default: the file's name).")] = None,
        path: Annotated[str, typer.Option(
            metavar="newest|p1|...", help="The decode path: the newest, or a phase's.")] = "newest",
        device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to run.")] = "cpu",
        kv: Annotated[str, KV_OPTION] = "f32",
) -> None:
    """Serve a model over the OpenAI API; each change of the batch is logged as `Batch m=N`."""
    import rowtwin
    from engine.cli import limit_threads
    from phases.p2_engine_serve.hybrid_engine import Limits
    from phases.p2_engine_serve.server import address, bound, is_public, run
    from phases.p2_engine_serve.service import Terms

    _check_api_key(api_key)
    _log_to_stderr()
    limit_threads(file)
    subject = rowtwin.assemble(path=path, stack="newest")
    limits = Limits(slots, context, int(memory * (1 << 30)))
    with bound(host, port) as listening:
        service = open_service(subject, file, limits, device,
                               Terms(name or file.name, queue=queue, chunk=chunk, key=api_key),
                               prefix_cache_mb << 20, kv)
        if api_key is None and is_public(listening):
            typer.echo(f"rowtwin: warning: {host} is reachable from other machines and no key is "
                       "required; set --api-key", err=True)
        typer.echo(f"{service.terms.name} at {address(listening)}/v1 with {slots} slots on the "
                   f"{subject.path.name} path")
        try:
            run(service, listening)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _check_api_key(key: str | None) -> None:
    """Refuse an empty key and a key that a client cannot send."""
    from engine.errors import InputError

    if key is not None and (not key.isprintable() or not key or key != key.strip()):
        raise InputError("--api-key must be printable and not empty, without spaces at the ends")


def open_service(subject: Any, file: Path, limits: Any, device: str, terms: Any,
                 prefixes: int = 0, kv: str = "f32") -> Service:
    """Load a model and start its engine's thread, or raise `InputError`."""
    from engine.gguf_file import open_gguf
    from engine.model import Model
    from engine.tokenizer import Tokenizer

    model = Model.load(file).with_kv(kv)
    tokenizer = Tokenizer.from_metadata(open_gguf(file).metadata, model.config.vocab)
    model = _move_to_device(model, device)
    engine = subject.stack.engine(model, subject.path, limits,
                                  subject.stack.prefixes(model, subject.path, prefixes))
    service: Service = subject.stack.service(subject.stack, engine, tokenizer, terms)
    return service


def _move_to_device(model: Any, device: str) -> Any:
    import torch

    from engine.errors import InputError

    if device not in ("cpu", "cuda"):
        raise InputError(f"unknown --device {device}: use cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no usable CUDA device found; use --device cpu")
    return model if device == "cpu" else model.to(device)


def _log_to_stderr() -> None:
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logger = logging.getLogger("rowtwin")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
