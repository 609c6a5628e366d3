"""Record calls of functions of the project, in each process that finds this file first.

Each line is the time in nanoseconds, the file and the qualified name. `tests.house.journey` reads
them; without its variable nothing is recorded.
"""

import os
import sys
import threading
import time
from types import FrameType
from typing import Any


def record(directory: str, root: str) -> None:
    """Append the calls of this process to a file of this directory."""
    out = os.open(f"{directory}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            line = f"{time.monotonic_ns()} {code.co_filename} {code.co_qualname}\n"
            os.write(out, line.encode())

    threading.setprofile(on_event)
    sys.setprofile(on_event)


if "HOUSE_JOURNEY" in os.environ:
    record(os.environ["HOUSE_JOURNEY"], os.environ["HOUSE_ROOT"])
