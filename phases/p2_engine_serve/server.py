"""The listening socket and uvicorn's server over the API."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine.errors import InputError
from phases.p2_engine_serve.service import Service

GRACE_MARGIN = 5
"""Seconds to send the ends of replies that were cancelled after the grace."""
HEAD_SECONDS = 30.0
"""Seconds that a connection may stay open without a complete request head."""


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free one. Raises `InputError` if it is in use."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"cannot listen on {host} port {port}: {error}") from None


def address(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_public(listening: socket.socket) -> bool:
    """Return whether other machines may reach a listening socket, by its address."""
    return not ipaddress.ip_address(listening.getsockname()[0]).is_loopback


class Connection(H11Protocol):
    """One client's connection; it is closed when no request arrives in HEAD_SECONDS."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._await_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with 400; close the connection if a response was already sent."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def _await_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class Server(uvicorn.Server):
    """Drains its service at shutdown: requests end by themselves or after the grace."""

    def __init__(self, service: Service) -> None:
        self.service = service
        super().__init__(uvicorn.Config(
            service.stack.api(service).app(), log_config=None, access_log=False, ws="none",
            http=Connection, loop="asyncio", lifespan="off", server_header=False,
            timeout_graceful_shutdown=int(service.terms.grace) + GRACE_MARGIN))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, close the service on a thread, and wait for the replies."""
        closing = asyncio.create_task(asyncio.to_thread(self.service.close))
        await super().shutdown(sockets)
        await closing


def run(service: Service, listening: socket.socket) -> None:
    """Serve until a signal; must be called on the main thread."""
    Server(service).run(sockets=[listening])

