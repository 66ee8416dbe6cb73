"""Limits the HTTP server's connections, so that clients without a token cannot block the server for other clients."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_IDLE, MAX_IDLE_OF_ADDRESS = 512, 128
"""Maximum numbers of idle connections, on which no request is being answered: in total, and per client address."""
ARRIVAL_LIMIT_S = 20.0
"""Seconds within which a request must arrive completely, and within which a client must receive data that are ready."""
MAX_HEADERS, MAX_HEAD_BYTES = 100, 2**16
SMALL_PART_BYTES, MAX_SMALL_PARTS = 64, 1000
"""A request body may have at most MAX_SMALL_PARTS parts of less than SMALL_PART_BYTES, because a small part costs the
server as much time as a large one."""
REFUSED_S = 1.0
"""To slow down bad clients, a connection stays open unread for this number of seconds after a refused request."""


class IdleConnections:
    """Keeps a list of the connections on which the server waits for the client, longest wait first.

    The client has not sent a complete request yet, is between two requests, or is not reading its response. If there
    are too many such connections, the one that has waited longest is closed. Normal clients send their request within
    milliseconds, so they are not affected. If new connections were refused instead, one client could block all others
    with the same address.
    """

    def __init__(self) -> None:
        self._all: dict[BoundedHttp, None] = {}
        self._by_address: defaultdict[str, dict[BoundedHttp, None]] = defaultdict(dict)

    def add(self, connection: BoundedHttp) -> None:
        """Add a connection that starts to wait. If there are now too many, close the one that has waited longest."""
        self.discard(connection)
        of_address = self._by_address[connection.address]
        self._all[connection] = of_address[connection] = None
        if len(of_address) > MAX_IDLE_OF_ADDRESS:
            next(iter(of_address)).abort()
        elif len(self._all) > MAX_IDLE:
            next(iter(self._all)).abort()

    def discard(self, connection: BoundedHttp) -> None:
        """Remove a connection that no longer waits for its client: it has a complete request, or is closed."""
        if self._all.pop(connection, connection) is None:
            of_address = self._by_address[connection.address]
            del of_address[connection]
            if not of_address:
                del self._by_address[connection.address]


class BoundedHttp(HttpToolsProtocol):
    """A uvicorn HTTP connection that limits how long it waits for its client. Meanwhile, it is listed in `idle`."""

    def __init__(self, *arguments: Any, idle: IdleConnections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.address = ""
        self._idle = idle
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = self._small_parts = 0
        self._has_head = False
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._wait_for_client()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data. Refuse a request if its request line and headers are too large."""
        if self._is_refused:
            return
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_client()
        self._has_head = False
        super().data_received(data)
        self._head_bytes = 0 if self._has_head else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response(f"The head of a request must have at most {MAX_HEAD_BYTES} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError(f"more than {MAX_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_head = True
        self._small_parts = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_head = True
        self._small_parts += len(body) < SMALL_PART_BYTES
        if self._small_parts > MAX_SMALL_PARTS:
            raise ValueError(f"more than {MAX_SMALL_PARTS} parts of a body below {SMALL_PART_BYTES} bytes")
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop waiting for the client, because its request is complete, unless the request was already answered."""
        self._has_head = True
        if not self.cycle.response_complete:
            self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the client again: it must receive the response and then send its next request."""
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last:
            self._wait_for_client()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request and stop reading. The connection closes after `REFUSED_S`."""
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # otherwise the cycle would resume reading
            self.cycle.message_event.set()
        self.flow.pause_reading()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(msg)}\r\n"
        self.transport.write(f"{head}Connection: close\r\n\r\n{msg}".encode())
        self.loop.call_later(REFUSED_S, self.transport.close)

    def abort(self) -> None:
        """Close the connection immediately, without sending the remaining data."""
        self._stop_waiting()
        self.transport.abort()

    def _wait_for_client(self) -> None:
        self._idle.add(self)
        if self._timer is None:
            self._timer = self.loop.call_later(ARRIVAL_LIMIT_S, self.abort)

    def _stop_waiting(self) -> None:
        self._idle.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
