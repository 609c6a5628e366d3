"""What the tests need of an engine of containers: images, and projects of a compose file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.containers.compose_file import Json


class Project(Protocol):
    """The services of a compose file, in real containers. Commands raise `CommandFailed`."""

    compose: Json

    def up(self, *services: str) -> None:
        """Start these services, or all, in order, as `compose up --detach` does."""

    def run(self, service: str, *arguments: str, variables: Mapping[str, str]) -> bytes:
        """Run a command of a service in a container of its own; return its output."""
        ...

    def exec(self, service: str, *command: str, stdin: bytes | None = None) -> bytes:
        """Run a program in a running container of a service; return its output."""
        ...

    def signal(self, service: str, name: str) -> None:
        """Send a signal to the containers of a service."""

    def restart(self, service: str) -> None:
        """Stop and start the containers of a service."""

    def stop(self, *services: str) -> None:
        """Stop the containers of these services, the first one first."""

    def start(self, service: str) -> None:
        """Start the stopped containers of a service again."""

    def crash(self, service: str) -> None:
        """Kill the containers of a service; return when they run again."""

    def replace(self, service: str) -> None:
        """Replace the containers of a service by ones of the compose file as it is now."""

    def remove(self, *services: str) -> None:
        """Remove the containers of these services; volumes stay."""

    def is_healthy(self, service: str) -> bool:
        """Return whether the health check of every container of a service passes."""
        ...

    def logs(self, service: str) -> str:
        """Return what the containers of a service wrote."""
        ...

    def pack_volume(self, volume: str) -> bytes:
        """Return the files of a volume as an archive of tar."""
        ...

    def unpack_volume(self, volume: str, archive: bytes) -> None:
        """Write the files of an archive into a volume, which is created if it is missing."""

    def remove_volume(self, volume: str) -> None:
        """Remove a volume that no container uses."""

    def down(self) -> None:
        """Remove containers, networks and volumes of the project."""


class Engine(Protocol):
    """Docker, or podman with stand-ins for the images that a registry would serve."""

    name: str

    def build(self, source: Path, tag: str) -> None:
        """Build the image of a checkout from its Dockerfile."""

    def project(self, name: str, directory: Path, compose: Json) -> Project:
        """Return a project whose files are in this directory; nothing is started."""
        ...

    def docker_command(self) -> str:
        """Return a shell command that accepts the arguments of `docker`."""
        ...

    def end(self) -> None:
        """Remove the images of this run."""
