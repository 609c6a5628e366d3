"""The image of the Dockerfile, and the installation of compose.yaml as processes of this machine, where no engine is."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import turnfold
from tests.containers.dockerfile import Image, build, image_in
from tests.containers.processes import Containers
from tests.postgres import Postgres
from turnfold.errors import NotAllowed

pytestmark = pytest.mark.timeout(300)  # the first test builds the image


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The image, built once; it is too large to be kept for a look afterwards."""
    with tempfile.TemporaryDirectory(prefix="turnfold-image-") as root:
        image = image_in(Path(root))
        build(image)
        yield image


async def greeted(nats_url: str, words: bytes) -> bytes:
    """The answer of a NATS server to a stranger with these words."""
    reader, writer = await asyncio.open_connection(*nats_url.removeprefix("nats://").split(":"))
    await reader.readline()
    writer.write(words)
    answer = await reader.readline()
    writer.close()
    return answer


@asynccontextmanager
async def running_containers(
    directory: Path, image: Image, postgres: Postgres
) -> AsyncGenerator[Containers]:
    database = await postgres.create_database()
    containers = Containers(directory, image, postgres, database)
    try:
        await containers.up()
        yield containers
    finally:
        await containers.kill()
        await postgres.drop_database(database)


@pytest.mark.proves("O2")
async def test_the_commands_of_compose_and_of_the_image_carry_a_turn_from_an_agent_to_its_window(
    tmp_path: Path, image: Image, postgres: Postgres
) -> None:
    async with running_containers(tmp_path, image, postgres) as containers:
        for name in ("query", "query-more", "worker"):
            await containers.until_healthy(name)

        keys = {
            agent: {"TURNFOLD_NATS_NKEY": str(containers.new_agent(agent))}
            for agent in ("support", "other")
        }
        await containers.reload_nats()
        async with turnfold.connect(containers.nats_url, environ=keys["support"]) as client:
            session = client.session("support", "user-42")
            await session.turn_completed([{"role": "user", "content": "Where is order 7341?"}])
            window = await session.context(max_tokens=8_000, wait_ms=5_000)
        async with turnfold.connect(containers.nats_url, environ=keys["other"]) as stranger:
            for forbidden in (
                stranger.session("support", "user-42").context(),
                stranger.erase_agent("support"),
            ):
                with pytest.raises(NotAllowed):
                    await forbidden
        async with httpx.AsyncClient() as http:
            path = "v1/agents/support/sessions/user-42/context?max_tokens=8000"
            pages = [
                await http.get(f"{containers.http_url(name)}/{path}")
                for name in ("query", "query-more")
            ]

        refusal = await greeted(containers.nats_url, b'CONNECT {"verbose": false}\r\nPING\r\n')

        assert [message["content"] for message in window.messages] == ["Where is order 7341?"]
        assert [page.json()["messages"] for page in pages] == [list(window.messages)] * 2
        assert await containers.failure_of("migrate", ["turnfold", "doctor"], http="query") == ""
        assert (
            await containers.failure_of(
                "operator", ["turnfold", "erase", "support", "user-42", "--yes"], http="query"
            )
            == ""
        )
        assert refusal == b"-ERR 'Authorization Violation'\r\n"
        assert {name: status for name, status in (await containers.down()).items() if status} == {}


def test_the_image_holds_the_locked_packages_and_ours_compiled_and_nothing_else(
    image: Image,
) -> None:
    (packages,) = (image.root / "opt" / "turnfold" / "lib").glob("python3.*/site-packages")
    names = {path.name for path in packages.iterdir()}

    assert names >= {
        "turnfold",
        "turnfold_worker",
        "turnfold_query",
        "turnfold_migrations",
        "litellm",
        "asyncpg",
    }
    assert not names & {"tests", "pip", "pytest", "hatchling", "uv"}
    ours = list(packages.glob("turnfold*/**/*.py"))
    assert ours
    assert not [
        path for path in ours if not list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))
    ]
