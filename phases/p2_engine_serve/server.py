"""Listening: uvicorn over the API, on the loopback unless told otherwise."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from engine.errors import InputError
from phases.p2_engine_serve.service import Service

LAST = 5
"""Seconds for the last words of replies that the grace has ended."""


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


class Server(uvicorn.Server):
    """Drains its service at shutdown: what was accepted ends, by itself or by the grace."""

    def __init__(self, service: Service) -> None:
        self.service = service
        super().__init__(uvicorn.Config(
            service.stack.api(service).app(), log_config=None, access_log=False, ws="none",
            http="h11", loop="asyncio", lifespan="off", server_header=False,
            timeout_graceful_shutdown=int(service.terms.grace) + LAST))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and wait for the replies while the service is closed beside them."""
        closing = asyncio.create_task(asyncio.to_thread(self.service.close))
        await super().shutdown(sockets)
        await closing


def run(service: Service, listening: socket.socket) -> None:
    """Serve until a signal ends it; must be called on the main thread."""
    Server(service).run(sockets=[listening])

