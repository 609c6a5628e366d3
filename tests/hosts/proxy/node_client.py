"""The client of OpenAI for Node, as `requirements/hosts/proxy.npm.json` names it.

It is fetched by its exact version when a test needs it, checked against its digest, and kept in the
environment of the host.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

LOCK = Path(__file__).parents[3] / "requirements" / "hosts" / "proxy.npm.json"
FETCH_SECONDS = 120


def node() -> str | None:
    """The Node program, or None where it or npm is missing."""
    return shutil.which("node") if shutil.which("npm") else None


def installed() -> Path:
    """The directory whose `node_modules` has the client; fetched once for each version.

    Raises:
        ValueError: the registry has served another package than the one that is locked.
    """
    lock = json.loads(LOCK.read_text())
    results = os.environ.get("HOST_RESULTS")
    root = Path(results).parent if results else LOCK.parents[2] / ".hosts" / "proxy"
    directory = root / f"node-{lock['version']}"
    package = directory / "node_modules" / lock["name"]
    if package.exists():
        return directory
    packed = directory / "packed"
    shutil.rmtree(directory, ignore_errors=True)
    packed.mkdir(parents=True)
    wanted = f"{lock['name']}@{lock['version']}"
    fetch = [
        "npm",
        "pack",
        wanted,
        "--silent",
        "--ignore-scripts",
        "--pack-destination",
        str(packed),
    ]
    subprocess.run(fetch, check=True, timeout=FETCH_SECONDS, stdout=subprocess.DEVNULL, cwd=packed)
    [archive] = packed.glob("*.tgz")
    algorithm, _, digest = lock["integrity"].partition("-")
    found = hashlib.new(algorithm, archive.read_bytes()).digest()
    if base64.b64encode(found).decode() != digest:
        raise ValueError(f"{wanted} has another {algorithm} than the lock")
    with tarfile.open(archive) as content:
        content.extractall(packed)
    package.parent.mkdir()
    (packed / "package").rename(package)
    return directory
