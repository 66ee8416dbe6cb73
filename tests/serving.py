"""A server of Chorale's service in a thread of this process."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chorale.runners.ray.serve import HttpServer
from tests.waiting import until


@contextmanager
def served(application: Any) -> Iterator[str]:
    """Serve `application` on loopback; return its address. In the end the server stops as after SIGTERM."""
    server = HttpServer(application)
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.handle_exit(signal.SIGTERM, None)
    thread.join()
