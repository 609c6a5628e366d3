"""The options of `podman run` that say what a service of a compose file says.

Every key must be known here: a key that is left out silently would leave it untested.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.containers.compose_file import Json, grace_seconds


class Place(NamedTuple):
    """Where a project is: its name, the directory of its files, and its compose file."""

    name: str
    directory: Path
    compose: Json


def options_of(service: Json, place: Place) -> list[str]:
    """Return the options of a container of this service.

    Raises:
        ValueError: a key of the service is unknown.
    """
    options: list[str] = []
    for key, value in service.items():
        if key not in _OPTIONS:
            raise ValueError(f"compose.yaml has the key {key!r}, which tests/containers ignores")
        options += _OPTIONS[key](value, place)
    return [*options, f"--stop-timeout={grace_seconds(service)}"]


def one_off(service: Json) -> Json:
    """Return the service as `compose run` starts it: without ports, restarts and health checks."""
    return {key: value for key, value in service.items() if key not in ("ports", "restart")} | {
        "healthcheck": {"disable": True}
    }


def _nothing(_: Any, __: Place) -> list[str]:
    """Return no option: the project acts on the key, or podman does the same by default."""
    return []


def _each(option: str) -> Callable[[Any, Place], list[str]]:
    return lambda values, _: [f"{option}={value}" for value in values]


def _one(option: str) -> Callable[[Any, Place], list[str]]:
    return lambda value, _: [f"{option}={value}"]


def _switch(option: str) -> Callable[[Any, Place], list[str]]:
    return lambda value, _: [option] if value else []


def _logging(value: Json, _: Place) -> list[str]:
    if value["driver"] != "local":
        raise ValueError(f"the log driver {value['driver']!r} is unknown here")
    # podman has no driver `local`; its own rotates by size, too.
    size = value["options"]["max-size"]
    return ["--log-driver=k8s-file", f"--log-opt=max-size={size}"]


def _environment(value: Json, _: Place) -> list[str]:
    return [f"--env={name}={text}" for name, text in value.items()]


def _mounted(kind: str, default: str) -> Callable[[Any, Place], list[str]]:
    def options(values: list[str | Json], place: Place) -> list[str]:
        mounts = [
            (value, f"{default}{value}")
            if isinstance(value, str)
            else (value["source"], value["target"])
            for value in values
        ]
        files = {source: place.compose[kind][source]["file"] for source, _ in mounts}
        return [
            f"--volume={(place.directory / files[source]).resolve()}:{target}:ro"
            for source, target in mounts
        ]

    return options


def _volumes(values: list[str], place: Place) -> list[str]:
    options = []
    for value in values:
        source, _, rest = value.partition(":")
        if source.startswith("."):
            options.append(f"--volume={(place.directory / source).resolve()}:{rest}")
        elif source in place.compose["volumes"]:
            options.append(f"--volume={place.name}_{source}:{rest}")
        else:
            raise ValueError(f"the volume {source!r} is not declared")
    return options


def _healthcheck(value: Json, _: Place) -> list[str]:
    if value.get("disable"):
        return ["--no-healthcheck"]
    kind, *words = value["test"]
    if kind != "CMD":
        raise ValueError(f"a health check of the kind {kind!r} is unknown here")
    return [
        f"--health-cmd={json.dumps(words)}",
        f"--health-timeout={value['timeout']}",
        f"--health-retries={value['retries']}",
    ]


def _deploy(value: Json, _: Place) -> list[str]:
    limits = dict(value.get("resources", {}).get("limits", {}))
    options = [
        f"--cpus={limits.pop('cpus')}",
        f"--memory={limits.pop('memory').lower()}",
        f"--pids-limit={limits.pop('pids')}",
    ]
    unknown = {*limits} | {*value} - {"replicas", "resources"}
    if unknown:
        raise ValueError(f"deploy has keys that are unknown here: {sorted(unknown)}")
    return options


_OPTIONS: dict[str, Callable[[Any, Place], list[str]]] = {
    "cap_drop": _each("--cap-drop"),
    "command": _nothing,
    "configs": _mounted("configs", "/"),
    "depends_on": _nothing,
    "deploy": _deploy,
    "entrypoint": lambda words, _: [f"--entrypoint={json.dumps(words)}"],
    "environment": _environment,
    "healthcheck": _healthcheck,
    "image": _nothing,
    "init": _switch("--init"),
    "logging": _logging,
    "ports": _each("--publish"),
    "profiles": _nothing,
    "read_only": _switch("--read-only"),
    "restart": _one("--restart"),
    "secrets": _mounted("secrets", "/run/secrets/"),
    "security_opt": _each("--security-opt"),
    "shm_size": _one("--shm-size"),
    "stop_grace_period": _nothing,
    "tmpfs": _each("--tmpfs"),
    "user": _one("--user"),
    "volumes": _volumes,
}
