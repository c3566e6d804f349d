"""HTTP connections that cannot be held open; only `server` imports this."""

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
"""In the scope of a request: it did not arrive in time, and was told so."""
GRACE = 1.0
"""Seconds in which requests have to arrive that were on their way when the server was told to end."""


class Connection(H11Protocol):
    """A connection whose requests have to arrive whole, and whose answers have to be taken, within some seconds.

    Uvicorn limits neither: a client that sends nothing, a header a minute or half a body would stay for ever. (Of its
    two parsers this is the one that limits the size of headers.)
    """

    seconds = 30.0
    _timer: asyncio.TimerHandle | None = None
    _begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count."""
        super().connection_made(transport)
        self._count()

    def data_received(self, data: bytes) -> None:
        """Count from the first byte of a request to its last."""
        if self._timer is None:
            self._count()
        self._begun = True
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_counting()

    def on_response_complete(self) -> None:
        """Count for a next request, a part of which was there already."""
        super().on_response_complete()
        if self.cycle.more_body and self._timer is None:
            self._count()
            self._begun = True

    def pause_writing(self) -> None:
        """The client does not take what it asked for."""
        super().pause_writing()
        self._count()

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        self._stop_counting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to count any more."""
        self._stop_counting()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Before the server ends: whole requests are answered, nobody waits for the rest of others."""
        if self.cycle is not None and _arriving(self):
            self.transport.close()
        else:
            super().shutdown()

    def _count(self) -> None:
        self._stop_counting()
        self._timer = self.loop.call_later(self.seconds, self._late)

    def _stop_counting(self) -> None:
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
        # Not to a connection that never said anything: a browser may have opened it just in case.
        if self._begun and not answered:
            self.transport.write(_too_late(self.seconds))
        self.transport.close()


def _too_late(seconds: float) -> bytes:
    sentence = f"Expected the whole request within {seconds:g} s, but got a part of it; send it faster."
    body = json.dumps({"detail": sentence}).encode()
    head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class HttpServer(uvicorn.Server):
    """Uvicorn that loses no request when it is told to end.

    It leaves signals to `serve.Stop`: its own handlers end with the signal once more, as a stack trace.
    """

    def capture_signals(self) -> Any:
        """None."""
        return nullcontext()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take in who has connected, close the port, read what was sent; then as uvicorn does it, answer and close."""
        loop = asyncio.get_running_loop()
        accepted: list[socket.socket] = []
        for listener in sockets or []:
            listener.setblocking(False)
            # Connections that the system has accepted would be reset with the port.
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
        # One turn at least, for what has come on connections that were kept.
        await asyncio.sleep(0.05)
        while loop.time() < end and any(map(_arriving, self.server_state.connections)):
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[no-any-return]


def _arriving(connection: Any) -> bool:
    """Whether a connection has not said all that it was opened for."""
    return connection.cycle is None or (connection.cycle.more_body and not connection.cycle.response_complete)
