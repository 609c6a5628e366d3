"""PostgreSQL behind TLS: what the URL says of certificates is held to."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from sqlalchemy import text

from tests.postgres import Postgres
from turnfold.errors import StartError, Unavailable
from turnfold.store.database.engine import Database
from turnfold_migrations import upgrade

SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""What a client of PostgreSQL says first where it wants to encrypt."""


class Gate:
    """Speaks TLS for a server that was built without, and lets in nobody who does not; counts who came in."""

    def __init__(self, behind: int, certificate: trustme.LeafCert) -> None:
        self.entered = 0
        self._behind = behind
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self._context)

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST:
                writer.write(b"S")
                await writer.start_tls(self._context)
                self.entered += 1
                inside, out = await asyncio.open_connection("127.0.0.1", self._behind)
                with contextlib.closing(out):
                    await asyncio.gather(_carry(reader, out), _carry(inside, writer))


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while some := await source.read(65_536):
        target.write(some)
        await target.drain()
    target.close()


@asynccontextmanager
async def gate(server: Postgres, certificate: trustme.LeafCert) -> AsyncGenerator[tuple[Gate, str]]:
    """A gate before a database of its own, and the URL of that without any parameter."""
    name = await server.create_database()
    made = Gate(server.port, certificate)
    listening = await asyncio.start_server(made.meet, "127.0.0.1", 0)
    try:
        yield (
            made,
            server.url(name).replace(str(server.port), str(listening.sockets[0].getsockname()[1])),
        )
    finally:
        listening.close()
        await server.drop_database(name)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def written(authority: trustme.CA, directory: Path) -> Path:
    """The file that names an authority as one to be trusted."""
    path = directory / "authority.pem"
    authority.cert_pem.write_to_path(path)
    return path


@pytest.mark.proves("X1")
@pytest.mark.parametrize("words", ["sslmode=verify-full&sslrootcert={}", "ssl=verify-full"])
async def test_a_server_that_proves_who_it_is_is_talked_to_under_encryption(
    words: str,
    tmp_path: Path,
    postgres: Postgres,
    authority: trustme.CA,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trusted = written(authority, tmp_path)
    monkeypatch.setenv("PGSSLROOTCERT", str(trusted))
    async with gate(postgres, authority.issue_cert("127.0.0.1")) as (entered, plain):
        url = f"{plain}?{words.format(trusted)}"
        await upgrade(url)
        database = Database(url, writes=True)
        await database.write(
            lambda connection: connection.execute(
                text("INSERT INTO agents (agent_id) VALUES ('ada')")
            )
        )
        found = await database.snapshot(
            lambda connection: (
                connection.execute(text("SELECT agent_id FROM agents")).scalars().all()
            )
        )
        await database.close()

    assert found == ["ada"]
    assert entered.entered == 3


@pytest.mark.proves("X1")
@pytest.mark.parametrize(
    ("name", "is_known"),
    [("127.0.0.1", False), ("db.example.org", True)],
    ids=["authority", "name"],
)
async def test_a_certificate_of_another_authority_or_for_another_name_is_refused(
    name: str, is_known: bool, tmp_path: Path, postgres: Postgres, authority: trustme.CA
) -> None:
    trusted = written(authority if is_known else trustme.CA(), tmp_path)
    async with gate(postgres, authority.issue_cert(name)) as (_, plain):
        url = f"{plain}?sslmode=verify-full&sslrootcert={trusted}"
        with pytest.raises(StartError, match="CERTIFICATE_VERIFY_FAILED"):
            await upgrade(url)
        database = Database(url, writes=False)
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await database.snapshot(lambda connection: connection.execute(text("SELECT 1")))
        await database.close()


async def test_a_misspelt_word_on_encryption_is_told_of() -> None:
    with pytest.raises(StartError, match="verify-full"):
        await upgrade("postgresql+asyncpg://turnfold@127.0.0.1:1/turnfold?sslmode=full")


@pytest.mark.proves("O3")
@pytest.mark.parametrize("name", ["bogus", "application_name", "command_timeout"])
async def test_a_parameter_that_cannot_be_used_is_told_of(name: str) -> None:
    url = f"postgresql+asyncpg://turnfold:secret@127.0.0.1:1/turnfold?{name}=1"

    with pytest.raises(StartError, match=f"has the parameter {name}, which cannot be used"):
        await upgrade(url)
    with pytest.raises(StartError, match=f"has the parameter {name}, which cannot be used"):
        Database(url, writes=False)


@pytest.mark.proves("O3", "O5")
@pytest.mark.parametrize(
    "parameters",
    [
        "port=x",
        "port=99999",
        "host=a:1&host=b:0",
        "host=a&host=b&port=1",
        "prepared_statement_cache_size=x",
        "prepared_statement_cache_size=1&prepared_statement_cache_size=2",
    ],
)
async def test_a_parameter_whose_value_cannot_be_used_is_told_of(parameters: str) -> None:
    url = f"postgresql+asyncpg://turnfold:secret@127.0.0.1:1/turnfold?{parameters}"

    with pytest.raises(StartError, match="TURNFOLD_DATABASE_URL cannot be used") as told:
        await upgrade(url)
    with pytest.raises(StartError, match="TURNFOLD_DATABASE_URL cannot be used"):
        Database(url, writes=False)

    assert "secret" not in str(told.value)
