"""The explorer on a real port."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from imsvd.explorer.serving import listen, server


@contextmanager
def served(app: FastAPI) -> Iterator[int]:
    """Serve `app` from a thread on 127.0.0.1 and yield the port."""
    with listen("127.0.0.1", 0) as opened:
        made = server(app)
        thread = threading.Thread(target=made.run, args=([opened],), daemon=True)
        thread.start()
        until = time.monotonic() + 20
        while not made.started and time.monotonic() < until:
            time.sleep(0.01)
        assert made.started
        yield int(opened.getsockname()[1])
        made.should_exit = True
        thread.join(10)
