"""HTTP connections with time limits; only `server` imports this."""

import asyncio
import json
import socket
from contextlib import nullcontext, suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["LATE", "Connection", "HttpServer"]

LATE = "modebridge.late"
"""Key in the scope of a request that did not arrive in time and was answered with 408."""
GRACE = 1.0
"""Seconds that requests in transit have to arrive when the server shuts down."""


class Connection(H11Protocol):
    """A connection with a time limit for receiving a request and for sending its response.

    Uvicorn has neither limit: a client that sends nothing, one header per minute or half a body would stay connected
    forever. (Of its two parsers, this is the one that limits the size of headers.)
    """

    seconds = 30.0
    _timer: asyncio.TimerHandle | None = None
    _begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Run the timer from the first byte of a request to its last."""
        if self._timer is None:
            self._start_timer()
        self._begun = True
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Start the timer if part of the next request has already arrived."""
        super().on_response_complete()
        if self.cycle.more_body and self._timer is None:
            self._start_timer()
            self._begun = True

    def pause_writing(self) -> None:
        """Start the timer: the client does not read the response."""
        super().pause_writing()
        self._start_timer()

    def resume_writing(self) -> None:
        """Stop the timer: the client reads again."""
        super().resume_writing()
        self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Answer complete requests before the server ends; drop incomplete ones."""
        if self.cycle is not None and _arriving(self):
            self.transport.close()
        else:
            super().shutdown()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._begun = None, False

    def _late(self) -> None:
        self._timer = None
        if self.flow.write_paused:
            self.transport.abort()
            return
        unread = self.cycle is not None and self.cycle.more_body
        answered = unread and self.cycle.response_started
        if unread and not answered:
            self.cycle.scope[LATE] = True  # type: ignore[literal-required]
        # A connection that sent nothing gets no response: browsers open some speculatively.
        if self._begun and not answered:
            self.transport.write(_too_late(self.seconds))
        self.transport.close()


def _too_late(seconds: float) -> bytes:
    sentence = f"Expected the whole request within {seconds:g} s, but got only part of it; send it faster."
    body = json.dumps({"detail": sentence}).encode()
    head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class HttpServer(uvicorn.Server):
    """A Uvicorn server that loses no request at shutdown.

    It leaves signals to `serve.Stop`: Uvicorn's own handlers raise the signal again at the end, with a traceback.
    """

    def capture_signals(self) -> Any:
        """Install no signal handlers."""
        return nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept pending connections, close the port and read what was sent; then let Uvicorn answer and close."""
        loop = asyncio.get_running_loop()
        accepted: list[socket.socket] = []
        for listener in sockets or []:
            listener.setblocking(False)
            # Closing the port would reset connections that the system has already accepted.
            with suppress(OSError):
                while True:
                    accepted.append(listener.accept()[0])
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in accepted:
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._connection, connection)
        end = loop.time() + GRACE
        # At least one turn of the event loop, for data on kept-alive connections.
        await asyncio.sleep(0.05)
        while loop.time() < end and any(map(_arriving, self.server_state.connections)):
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[no-any-return]


def _arriving(connection: Any) -> bool:
    """Whether a connection has not yet sent its complete request."""
    return connection.cycle is None or (connection.cycle.more_body and not connection.cycle.response_complete)
