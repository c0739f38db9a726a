"""The explorer on a real port."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from imsvd.explorer.serving import listen


@contextmanager
def served(app: FastAPI) -> Iterator[int]:
    """Serve `app` from a thread on 127.0.0.1 and yield the port."""
    with listen("127.0.0.1", 0) as opened:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none"))
        thread = threading.Thread(target=server.run, args=([opened],), daemon=True)
        thread.start()
        until = time.monotonic() + 20
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        assert server.started
        yield int(opened.getsockname()[1])
        server.should_exit = True
        thread.join(10)
