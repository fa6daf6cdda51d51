"""P2's increment: an engine of the model's own, and a server whose every part can be replaced.

It also names what a successor needs of this phase and of P0, of which it imports nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.model import Model
from engine.path import Path
from phases.p0_scheduler import increment as before
from phases.p0_scheduler.increment import Emitted, Ended, Event, Request, Row, Seat, Settings, Token
from phases.p2_engine_serve import reference
from phases.p2_engine_serve.api import Api
from phases.p2_engine_serve.hybrid_engine import HybridEngine, Limits, NoPrefixes, Prefixes
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.sampling import Sampling
from phases.p2_engine_serve.server import Server, address, bound
from phases.p2_engine_serve.service import Service, Terms
from phases.p2_engine_serve.stop_text import StreamedText
from phases.p2_engine_serve.template import Template

__all__ = [
    "Emitted", "Ended", "Event", "HybridEngine", "Limits", "NoPrefixes", "Prefixes", "Request",
    "Row", "Sampling", "Seat", "Server", "Service", "Settings", "Stack", "Terms", "Token",
    "address", "bound", "stack"]


@dataclass(frozen=True)
class Stack(before.Stack):
    """P0's parts, the serial peer over the oracle, the engine, and the server's parts."""

    engine: type[HybridEngine]
    """Called with a model, a path, `Limits` and what `prefixes` returned."""
    prefixes: Callable[[Model, Path, int], Prefixes]
    """Called with a model, a path and the bytes that states of earlier prompts may take."""
    text: type[StreamedText]
    """Called with a tokenizer and stop strings, for each request."""
    template: type[Template]
    """Called with the chat template of the model's file."""
    reply: type[Reply]
    """Called with a request, its text and the driver."""
    service: type[Service]
    """Called with the stack, an engine, a tokenizer and `Terms`; starts the engine's thread."""
    api: type[Api]
    """Called with a service; its `app()` is what uvicorn runs."""


def stack() -> Stack:
    """Return the stack of this phase."""
    parts = before.stack()
    return Stack(scheduler=parts.scheduler, driver=parts.driver, serial=reference.serve,
                 engine=HybridEngine, prefixes=lambda model, path, budget: NoPrefixes(),
                 text=StreamedText, template=Template, reply=Reply, service=Service, api=Api)
