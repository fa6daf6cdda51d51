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
        slots: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
        port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
        host: Annotated[str, typer.Option(
            help="Address to listen on; others than the loopback let strangers in.")] = "127.0.0.1",
        queue: Annotated[int, typer.Option(min=0, help="Requests that may wait.")] = 64,
        context: Annotated[int, typer.Option(
            min=1, help="Tokens of one request, prompt and reply.")] = 4096,
        chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens of a request a step.")] = 64,
        memory: Annotated[float, typer.Option(
            min=0, max=1 << 20, help="GiB of state at most.")] = 16.0,
        prefix_cache_mb: Annotated[int, typer.Option(
            min=0, help="MiB of states kept of earlier prompts, beside those of the slots.")] = 256,
        api_key: Annotated[str | None, typer.Option(
            envvar="ROWTWIN_API_KEY", help="What clients must send as a bearer token.")] = None,
        name: Annotated[str | None, typer.Option(
            help="What the model is called (default: the file's name).")] = None,
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
            typer.echo(f"rowtwin: without --api-key anyone who reaches {host} is served", err=True)
        typer.echo(f"{service.terms.name} at {address(listening)}/v1 with {slots} slots on the "
                   f"{subject.path.name} path")
        try:
            run(service, listening)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _check_api_key(key: str | None) -> None:
    """Refuse a key that no client could show, or that everyone would."""
    from engine.errors import InputError

    if key is not None and (not key.isprintable() or not key or key != key.strip()):
        raise InputError("--api-key must be printable, and neither empty nor with a space at an "
                         "end")


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
        raise InputError(f"--device {device} is not known; known are cpu and cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda needs a CUDA device, and none is usable here")
    return model if device == "cpu" else model.to(device)


def _log_to_stderr() -> None:
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logger = logging.getLogger("rowtwin")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
