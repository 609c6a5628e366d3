"""Podman as an engine: a store of its own, and just enough of compose.

All that podman writes stays below one directory, so that other containers of the machine are never touched.
"""

import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.containers.compose_file import Json, in_order, replicas
from tests.containers.podman_arguments import Place, one_off, options_of
from tests.containers.programs import BUILD_SECONDS, COMMAND_SECONDS, CommandFailed, output

HEALTHY_SECONDS = 120.0
MIGRATED_SECONDS = 180.0
RESTARTED_SECONDS = 30.0
REMOVALS = 5


class Podman:
    """Podman with its images and containers below one directory."""

    name = "podman"

    def __init__(self, home: Path, *, is_kept: bool = False) -> None:
        self._home, self._is_kept = home, is_kept
        home.mkdir(parents=True, exist_ok=True)
        (home / "containers.conf").write_text(_configuration())
        self._command = [
            "podman",
            f"--root={home / 'store'}",
            f"--runroot={home / 'run'}",
            f"--tmpdir={home / 'tmp'}",
            f"--network-config-dir={home / 'networks'}",
        ]
        self._variables = {
            "CONTAINERS_CONF": str(home / "containers.conf"),
            # Without systemd there are no timers; `is_healthy` runs the checks.
            "DISABLE_HC_SYSTEMD": "true",
        }

    def call(
        self,
        *arguments: str | Path,
        stdin: bytes | None = None,
        seconds: float = COMMAND_SECONDS,
        with_errors: bool = False,
    ) -> bytes:
        """Run podman with these arguments; return its output."""
        return output(
            [*self._command, *arguments],
            stdin=stdin,
            environ=os.environ | self._variables,
            seconds=seconds,
            with_errors=with_errors,
        )

    def has_image(self, tag: str) -> bool:
        """Return whether an image is in the store."""
        with suppress(CommandFailed):
            self.call("image", "exists", f"localhost/{tag}")
            return True
        return False

    def build(self, source: Path, tag: str, *options: str) -> None:
        """Build an image. Its format is docker's, because the other one has no health checks."""
        self.call(
            "build",
            "--format=docker",
            "--network=host",
            "--pull=never",
            f"--tag=localhost/{tag}",
            *options,
            source,
            seconds=BUILD_SECONDS,
        )

    def project(self, name: str, directory: Path, compose: Json) -> "PodmanProject":
        """Return a project whose files are in this directory; nothing is started."""
        return PodmanProject(self, Place(name, directory, compose))

    def docker_command(self) -> str:
        """Return a shell command that accepts the arguments of `docker`."""
        variables = " ".join(f"{name}='{value}'" for name, value in self._variables.items())
        return f"env {variables} {' '.join(self._command)}"

    def end(self) -> None:
        """Remove the images of this run, unless they are kept for the next one."""
        if not self._is_kept:
            self.call("rmi", "--all", "--force")
            store = self._home / "store" / "overlay"
            if os.path.ismount(store):
                output(["umount", store])
            shutil.rmtree(self._home)


class PodmanProject:
    """The services of a compose file in podman's containers."""

    def __init__(self, podman: Podman, place: Place) -> None:
        self._podman, self._name, self._directory = podman, place.name, place.directory
        self._network = f"{place.name}_default"
        self.compose = place.compose
        podman.call("network", "create", self._network)

    @property
    def _services(self) -> dict[str, Json]:
        return dict(self.compose["services"])

    def up(self, *services: str) -> None:
        """Start these services, or all, in order of what they depend on."""
        for name in in_order(self._services):
            if services and name not in services:
                continue
            self._until_ready(name)
            for container in self._containers(name):
                state = self._state(container)
                if state is None:
                    self._create(name, container)
                elif state != "running":
                    self._podman.call("start", container)

    def run(self, service: str, *arguments: str, variables: Mapping[str, str]) -> bytes:
        """Run a command of a service in a container of its own; return its output."""
        described = one_off(self._services[service])
        options = self._options(described)
        options += [f"--env={name}={value}" for name, value in variables.items()]
        return self._podman.call("run", "--rm", *options, described["image"], *arguments)

    def exec(self, service: str, *command: str, stdin: bytes | None = None) -> bytes:
        """Run a program in a running container of a service; return its output."""
        interactive = ["--interactive"] if stdin is not None else []
        first = next(self._containers(service))
        return self._podman.call("exec", *interactive, first, *command, stdin=stdin)

    def signal(self, service: str, name: str) -> None:
        """Send a signal to the containers of a service."""
        self._podman.call("kill", f"--signal={name}", *self._containers(service))

    def restart(self, service: str) -> None:
        """Stop and start the containers of a service."""
        self._podman.call("restart", *self._containers(service))

    def stop(self, *services: str) -> None:
        """Stop the containers of these services, the first one first."""
        for service in services:
            self._podman.call("stop", *self._containers(service))

    def start(self, service: str) -> None:
        """Start the stopped containers of a service again."""
        self._podman.call("start", *self._containers(service))

    def crash(self, service: str) -> None:
        """Kill the containers of a service; return when podman has restarted them."""
        before = self._starts(service)
        # Not by `podman kill`, because podman restarts no container that it killed itself.
        for state in self._states(service):
            os.kill(state["Pid"], signal.SIGKILL)
        self._wait(service, lambda: self._starts(service).isdisjoint(before), RESTARTED_SECONDS)

    def replace(self, service: str) -> None:
        """Replace the containers of a service, one by one."""
        for container in self._containers(service):
            self._podman.call("stop", container)
            self._podman.call("rm", container)
            self._create(service, container)

    def remove(self, *services: str) -> None:
        """Remove the containers of these services; volumes stay."""
        for service in services:
            for container in self._containers(service):
                self._podman.call("rm", "--ignore", container)

    def is_healthy(self, service: str) -> bool:
        """Return whether the health check of every container of a service passes."""
        with suppress(CommandFailed):
            for container in self._containers(service):
                self._podman.call("healthcheck", "run", container)
            return True
        return False

    def logs(self, service: str) -> str:
        """Return what the containers of a service wrote."""
        said = [self._log(container) for container in self._containers(service)]
        return "\n".join(said)

    def pack_volume(self, volume: str) -> bytes:
        """Return the files of a volume as an archive of tar."""
        return self._podman.call("volume", "export", f"{self._name}_{volume}")

    def unpack_volume(self, volume: str, archive: bytes) -> None:
        """Write the files of an archive into a volume, which is created if it is missing."""
        name = f"{self._name}_{volume}"
        with suppress(CommandFailed):
            self._podman.call("volume", "create", name)
        self._podman.call("volume", "import", name, "-", stdin=archive)

    def remove_volume(self, volume: str) -> None:
        """Remove a volume that no container uses."""
        self._podman.call("volume", "rm", f"{self._name}_{volume}")

    def down(self) -> None:
        """Remove containers, networks and volumes of the project."""
        for service in self._services:
            for container in self._containers(service):
                self._remove(container)
        for volume in self.compose["volumes"]:
            with suppress(CommandFailed):
                self.remove_volume(volume)
        self._podman.call("network", "rm", "--force", self._network)

    def _remove(self, container: str) -> None:
        """Remove a container. That fails while podman is about to restart it or to note its end."""
        for _ in range(REMOVALS):
            with suppress(CommandFailed):
                self._podman.call("rm", "--force", "--ignore", "--time=1", container)
                return
            time.sleep(1)
        self._podman.call("rm", "--force", "--ignore", "--time=0", container)

    def _containers(self, service: str) -> Iterator[str]:
        for number in range(replicas(self._services[service])):
            yield f"{self._name}-{service}-{number + 1}"

    def _options(self, service: Json) -> list[str]:
        # The tag is as in the compose file; no registry is asked.
        return [
            "--pull=never",
            "--http-proxy=false",
            f"--network={self._network}",
            *options_of(service, Place(self._name, self._directory, self.compose)),
        ]

    def _create(self, service: str, container: str) -> None:
        described = self._services[service]
        self._podman.call(
            "run",
            "--detach",
            f"--name={container}",
            f"--network-alias={service}",
            *self._options(described),
            described["image"],
            *described.get("command", []),
        )

    def _until_ready(self, service: str) -> None:
        """Wait until what a service depends on is as far as it requires."""
        for other, needed in self._services[service].get("depends_on", {}).items():
            match needed["condition"]:
                case "service_healthy":
                    self._wait(other, partial(self.is_healthy, other), HEALTHY_SECONDS)
                case "service_completed_successfully":
                    self._wait(other, partial(self._has_succeeded, other), MIGRATED_SECONDS)
                case condition:
                    raise ValueError(f"the condition {condition!r} is unknown here")

    def _has_succeeded(self, service: str) -> bool:
        return all(self._state(container) == "exited" for container in self._containers(service))

    def _wait(self, service: str, is_reached: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_reached():
            if time.monotonic() > deadline:
                raise CommandFailed(
                    f"{service} was not ready in time:\n{self.logs(service)[-4_000:]}"
                )
            time.sleep(0.3)

    def _state(self, container: str) -> str | None:
        """Return the state of a container, or None; one that failed is `failed`, not `exited`."""
        with suppress(CommandFailed):
            [seen] = json.loads(self._podman.call("container", "inspect", container))
            status = str(seen["State"]["Status"])
            return "failed" if status == "exited" and seen["State"]["ExitCode"] else status
        return None

    def _starts(self, service: str) -> set[str]:
        """Return when the containers of a service were started; of one that ended, its last start."""
        return {str(state["StartedAt"]) for state in self._states(service)}

    def _states(self, service: str) -> list[Json]:
        containers = self._containers(service)
        seen = json.loads(self._podman.call("container", "inspect", *containers))
        return [one["State"] for one in seen]

    def _log(self, container: str) -> str:
        try:
            said = self._podman.call("logs", container, with_errors=True)
            return said.decode(errors="replace")
        except CommandFailed as error:
            return str(error)


def _configuration() -> str:
    """Return settings that hold without systemd, and below the limits of who runs the tests."""
    limits = []
    for name, number, most in (
        ("nofile", resource.RLIMIT_NOFILE, 20_000),
        ("nproc", resource.RLIMIT_NPROC, 2_000),
    ):
        hard = resource.getrlimit(number)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(hard, most)
        limits.append(f'"{name}={limit}:{limit}"')
    runtime = '\nruntime = "runc"' if shutil.which("runc") else ""
    return (
        f"[containers]\ndefault_ulimits = [{', '.join(limits)}]\n"
        '[network]\nnetwork_backend = "netavark"\n'
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"{runtime}\n'
    )
