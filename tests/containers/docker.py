"""Docker with compose as an engine: the real images, and compose itself."""

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.containers.compose_file import Json, write
from tests.containers.programs import BUILD_SECONDS, CommandFailed, output


class Docker:
    """The docker of this machine; images of a run carry tags of their own, and go at its end."""

    name = "docker"

    def __init__(self) -> None:
        self._tags: list[str] = []

    def build(self, source: Path, tag: str) -> None:
        """Build the image of a checkout from its Dockerfile."""
        output(["docker", "build", "--tag", tag, source], seconds=BUILD_SECONDS)
        self._tags.append(tag)

    def project(self, name: str, directory: Path, compose: Json) -> "DockerProject":
        """Return a project whose files are in this directory; nothing is started."""
        return DockerProject(name, directory, compose)

    def docker_command(self) -> str:
        """Return a shell command that accepts the arguments of `docker`."""
        # Its path, because the shell that runs it has a program `docker` of the test before it.
        return shutil.which("docker") or "docker"

    def end(self) -> None:
        """Remove the images of this run. Base images and the cache of builds stay."""
        for tag in self._tags:
            with suppress(CommandFailed):
                output(["docker", "image", "rm", "--force", tag])


class DockerProject:
    """The services of a compose file, as `docker compose` runs them."""

    def __init__(self, name: str, directory: Path, compose: Json) -> None:
        self._name, self._directory, self.compose = name, directory, compose

    def up(self, *services: str) -> None:
        """Start these services, or all; compose waits for what they depend on."""
        self._compose("up", "--detach", "--no-build", *services)

    def run(self, service: str, *arguments: str, variables: Mapping[str, str]) -> bytes:
        """Run a command of a service in a container of its own; return its output."""
        more = [f"--env={name}={value}" for name, value in variables.items()]
        return self._compose("run", "--rm", "--no-deps", "-T", *more, service, *arguments)

    def exec(self, service: str, *command: str, stdin: bytes | None = None) -> bytes:
        """Run a program in a running container of a service; return its output."""
        return self._compose("exec", "-T", service, *command, stdin=stdin)

    def signal(self, service: str, name: str) -> None:
        """Send a signal to the containers of a service."""
        self._compose("kill", "--signal", name, service)

    def restart(self, service: str) -> None:
        """Stop and start the containers of a service."""
        self._compose("restart", "--no-deps", service)

    def stop(self, *services: str) -> None:
        """Stop the containers of these services, the first one first."""
        for service in services:
            self._compose("stop", service)

    def start(self, service: str) -> None:
        """Start the stopped containers of a service again."""
        self._compose("start", service)

    def crash(self, service: str) -> None:
        """Kill the containers of a service, and start them: docker restarts none that it killed."""
        self._compose("kill", "--signal", "KILL", service)
        self._compose("start", service)

    def replace(self, service: str) -> None:
        """Replace the containers of a service by ones of the compose file as it is now."""
        self._compose("up", "--detach", "--no-deps", "--no-build", "--force-recreate", service)

    def remove(self, *services: str) -> None:
        """Remove the containers of these services; volumes stay."""
        self._compose("rm", "--force", "--stop", *services)

    def is_healthy(self, service: str) -> bool:
        """Return whether the health check of every container of a service passes."""
        containers = self._compose("ps", "--quiet", service).decode().split()
        if not containers:
            return False
        seen = json.loads(output(["docker", "container", "inspect", *containers]))
        return all(one["State"].get("Health", {}).get("Status") == "healthy" for one in seen)

    def logs(self, service: str) -> str:
        """Return what the containers of a service wrote."""
        return self._compose("logs", "--no-color", service).decode()

    def pack_volume(self, volume: str) -> bytes:
        """Return the files of a volume as an archive of tar."""
        return self._with_volume(volume, "--create")

    def unpack_volume(self, volume: str, archive: bytes) -> None:
        """Write the files of an archive into a volume, which is created if it is missing."""
        self._with_volume(volume, "--extract", stdin=archive)

    def remove_volume(self, volume: str) -> None:
        """Remove a volume that no container uses."""
        output(["docker", "volume", "rm", f"{self._name}_{volume}"])

    def down(self) -> None:
        """Remove containers, networks and volumes of the project."""
        self._compose("--profile", "*", "down", "--volumes", "--timeout", "1")

    def _compose(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        file = self._directory / "compose.yaml"
        write(self.compose, file)
        place = ["--project-name", self._name, "--file", str(file)]
        return output(
            ["docker", "compose", *place, *arguments], stdin=stdin, directory=self._directory
        )

    def _with_volume(self, volume: str, action: str, stdin: bytes | None = None) -> bytes:
        """Run tar on a volume, as root, so that owners stay what they are."""
        image = self.compose["services"]["worker"]["image"]
        mounted = ["--volume", f"{self._name}_{volume}:/volume", "--user", "0", "--interactive"]
        program = ["--entrypoint", "tar", image, "--directory", "/volume", "--file=-", action]
        files = ["."] if action == "--create" else []
        return output(["docker", "run", "--rm", *mounted, *program, *files], stdin=stdin)
