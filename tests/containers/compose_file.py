"""`compose.yaml` as a value: merged with an override, with ports and image names of one run.

Both engines read the same value. What a run changes is listed in `of_run`; all else is as shipped.
"""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

Json = dict[str, Any]

IMAGE = "turnfold:0.1.0"
"""The image of our services, as compose.yaml and deploy/make-secrets name it."""


def read(*files: Path) -> Json:
    """Read a file and merge those after it into it, as `docker compose -f one -f two` does."""
    base, *overrides = [YAML(typ="safe", pure=True).load(file.read_text()) for file in files]
    for override in overrides:
        base = _merged(base, override)
    return dict(base)


def write(compose: Json, file: Path) -> None:
    """Write it as a file of compose. JSON is YAML, and every reader understands it alike."""
    file.write_text(json.dumps(compose, indent=1), encoding="utf-8")


def of_run(compose: Json, *, image: str, host_ports: Mapping[int, int]) -> Json:
    """Return it with another tag for our image, and other ports on the host's loopback."""
    changed = deepcopy(compose)
    # Containers, networks and volumes of a run are named after its project.
    del changed["name"]
    for service in changed["services"].values():
        if service["image"] == IMAGE:
            service["image"] = image
            del service["build"]
        for place, port in enumerate(service.get("ports", ())):
            address, _, inside = port.split(":")
            service["ports"][place] = f"{address}:{host_ports[int(inside)]}:{inside}"
    return changed


def in_order(services: Mapping[str, Json]) -> Iterator[str]:
    """Yield the services that `up` starts, each after those that it depends on."""
    waiting = {name for name, service in services.items() if "profiles" not in service}
    while waiting:
        ready = [
            name
            for name in services
            if name in waiting and not waiting & set(services[name].get("depends_on", ()))
        ]
        if not ready:
            raise ValueError(f"services depend on each other in a circle: {sorted(waiting)}")
        yield from ready
        waiting -= set(ready)


def replicas(service: Json) -> int:
    """Return how many containers a service has."""
    return int(service.get("deploy", {}).get("replicas", 1))


def grace_seconds(service: Json) -> int:
    """Return how long a container is given to stop."""
    return int(service.get("stop_grace_period", "10s").removesuffix("s"))


def _merged(base: Any, override: Any) -> Any:
    if isinstance(base, dict) and isinstance(override, dict):
        return base | {
            name: _merged(base[name], value) if name in base else value
            for name, value in override.items()
        }
    if isinstance(base, list) and isinstance(override, list):
        return [*base, *override]
    return override
