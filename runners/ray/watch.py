"""Checks whether a Ray cluster's head responds, and whether the cluster requires a token.

Ray itself needs minutes to notice that the head does not respond, and then ends the process that uses Ray. If a cluster
requires no token, anybody can run code on all its machines, including this one once it has joined.
"""

import os
import socket
import threading
import time
from collections.abc import Callable

from chorale.synth.errors import InvalidInput, Unavailable

LOOK_S = 0.2
SILENCE_LIMIT_S = 10.0
PING_S = 3.0
NOTICE_S = 1.0
LEAST_FAILURES = 3  # more than one, because one may only mean that this process was suspended
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # ends with empty settings
INSECURE_VARIABLE = "CHORALE_INSECURE_CLUSTER"
"""Environment variable that `--insecure-cluster` sets to 1, for this process and its child processes."""
_CLIENT = "ray://"
_METHODS = {True: "/ray.rpc.RayletDriver/ClusterInfo", False: "/ray.rpc.NodeInfoGcsService/CheckAlive"}
_PATIENCE_S = 5.0


class ClusterLost(Unavailable):
    """Raised if a campaign's cluster no longer works."""

    def __init__(self, value: str) -> None:
        way_out = "start the cluster again, then continue with --resume"
        super().__init__("the Ray cluster must stay reachable", value, way_out)


LossHandler = Callable[[ClusterLost], None]
"""Function that is called from a thread if this process's cluster is lost and nobody calls `check`. Calls to Ray may
then hang forever, so the handler should end the process."""

_handlers: list[LossHandler] = []


def handle_loss(handler: LossHandler) -> None:
    """Set the handler for the loss of clusters that this process joins from now on."""
    _handlers[:] = [handler]


def end_with_raylet() -> None:
    """Make this worker end as soon as the raylet that started it ends, even if its threads are busy.

    Ray then restarts the worker's actors elsewhere. Without this, a worker with busy threads would keep running.
    """
    raylet = os.getppid()

    def watch() -> None:
        while os.getppid() == raylet:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="chorale-end-with-raylet", daemon=True).start()


class ClusterWatch:
    """Checks periodically, in a thread, whether the cluster's head at `address` answers."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._closed = threading.Event()
        self._loss: ClusterLost | None = None
        self._is_known = False
        self._handler = _handlers[0] if _handlers else None
        threading.Thread(target=self._watch, name="chorale-ray-watch", daemon=True).start()

    def check(self) -> None:
        """Raise ClusterLost if the head has not answered for `SILENCE_LIMIT_S`."""
        if self._loss is not None:
            self._is_known = True
            raise self._loss

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        answered_s, failures = time.monotonic(), 0
        while self._loss is None:
            if head_answers(self._address, PING_S):
                answered_s, failures = time.monotonic(), -1
            failures += 1
            if failures >= LEAST_FAILURES and time.monotonic() - answered_s > SILENCE_LIMIT_S:
                self._loss = ClusterLost(f"{self._address} has not answered for {SILENCE_LIMIT_S:.0f} s")
            if self._closed.wait(LOOK_S if self._loss else PING_S):
                return
        if not self._closed.wait(NOTICE_S) and not self._is_known and self._handler is not None:
            self._handler(self._loss)  # the thread that should have called `check` is waiting for Ray


def head_answers(address: str, timeout_s: float) -> bool:
    """Return whether HOST:PORT answers in HTTP/2, as Ray's head does; a stopped process does not answer."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return True
            connection.settimeout(timeout_s)
            connection.sendall(_HTTP2_PREFACE)
            return bool(connection.recv(9))
    except (OSError, ValueError, OverflowError):
        return False


def require_authentication(address: str) -> None:
    """Raise InvalidInput if the cluster at HOST:PORT or ray://HOST:PORT answers requests without a token.

    A cluster that does not answer at all is accepted, because joining it will report the reason.
    """
    named = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    has_token = "RAY_AUTH_TOKEN" in os.environ or os.path.exists(named)
    answers = _answers_anybody(address)
    if answers is None and not has_token:
        way_out = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH=FILE to the token of the cluster"
        raise Unavailable("this Ray cluster needs a token", address, way_out)
    if answers and os.environ.get(INSECURE_VARIABLE) != "1":
        rule = "this Ray cluster does not authenticate its users: anybody who reaches it can run code in it ({})"
        way_out = (
            "start it with RAY_AUTH_MODE=token, or add --insecure-cluster if everybody who can reach it is trusted"
        )
        raise InvalidInput(rule, address, way_out)


def _answers_anybody(address: str) -> bool | None:
    """Return True if a request without a token is answered, None if it is refused, or False if there is no reply."""
    import grpc  # noqa: PLC0415 - only needed to join a cluster

    is_client = address.startswith(_CLIENT)
    method = _METHODS[is_client]
    with grpc.insecure_channel(address.removeprefix(_CLIENT).partition("/")[0]) as channel:
        call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", timeout=_PATIENCE_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return None
            return error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True
