"""Listening: uvicorn over the API, on the loopback unless told otherwise."""

from __future__ import annotations

import socket

import uvicorn

from engine.errors import InputError
from phases.p2_engine_serve.service import Service


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket; 0 takes any free port. Raises `InputError` when it is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"cannot listen on {host} port {port}: {error}") from None


def address(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def uvicorn_of(service: Service) -> uvicorn.Server:
    """Return the server of a service; requests in progress get the grace at shutdown."""
    return uvicorn.Server(uvicorn.Config(
        service.stack.api(service).app(), log_config=None, access_log=False, ws="none", http="h11",
        loop="asyncio", lifespan="on", server_header=False,
        timeout_graceful_shutdown=max(1, int(service.terms.grace))))


def run(service: Service, listening: socket.socket) -> None:
    """Serve until a signal ends it; must be called on the main thread."""
    uvicorn_of(service).run(sockets=[listening])

