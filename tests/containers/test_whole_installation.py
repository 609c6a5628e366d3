"""The images and compose.yaml in real containers: a journey, restarts, a backup, and an upgrade.

`make containers` runs these tests; `make test` does not, because they build images for minutes.
"""

from asyncio import to_thread
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

import turnfold
from tests.containers.agents import Agents, agents_of
from tests.containers.engines import Engine
from tests.containers.installation import SERVICES, Installation, running_installation
from tests.running_system import eventually

ROOT = Path(__file__).parents[2]
SECONDS = 120.0
DATABASE = ("--username=turnfold", "--dbname=turnfold")

pytestmark = pytest.mark.timeout(1_800)


@pytest.fixture(scope="module")
def installation(engine: Engine, today: str) -> Iterator[Installation]:
    """An installation of today's checkout, which the tests share; each has an agent of its own."""
    with running_installation(engine, ROOT, today) as running:
        yield running


async def summary_in_force(agents: Agents) -> turnfold.Window:
    """Return a window with a summary, once there is one."""

    async def summarized() -> turnfold.Window | None:
        window = await agents.nats.session.context(max_tokens=20_000, wait_ms=5_000)
        return window if window.summary and window.fresh else None

    return await eventually(summarized, seconds=SECONDS, every=0.5)


@pytest.mark.proves("O2", "W1", "S4", "X1")
async def test_turns_over_nats_and_http_reach_windows_search_and_a_summary(
    installation: Installation,
) -> None:
    async with agents_of(installation, "support") as agents:
        async with agents.at_work():
            while len(agents.nats.accepted) < 60:
                await agents.make_progress()

        window = await summary_in_force(agents)
        found = await agents.nats.session.search("PX-0003")
        counts = await agents.check()
        over_http = await agents.http.window()
        versions = await installation.operator("summaries", "list", "support", "over-nats")

        assert list(window.messages[-2:]) == agents.nats.accepted[-2:]
        assert over_http["messages"][-2:] == agents.http.accepted[-2:]
        assert window.account.covered > 0
        assert found[0].message == agents.nats.accepted[7]
        assert "\tyes\textractive\t" in versions
        assert agents.failures == 0
        assert min(counts["versions"], counts["audit"]) > 0
        await installation.run("migrate", "doctor")


@pytest.mark.proves("X1")
async def test_a_token_holds_as_soon_as_it_is_made_and_until_it_is_revoked(
    installation: Installation,
) -> None:
    token = installation.new_token("--operator", "--name=visitor")
    statuses = []
    async with installation.http(token) as guest, installation.http(None) as stranger:
        statuses.append((await stranger.get("/v1/sessions")).status_code)
        statuses.append((await guest.get("/v1/sessions")).status_code)
        installation.in_image("keys", "revoke", sha256(token.encode()).hexdigest(), "--dir=/s/http")
        statuses.append((await guest.get("/v1/sessions")).status_code)

    assert statuses == [401, 200, 401]


@pytest.mark.proves("L1", "L2", "O2")
async def test_services_that_are_restarted_or_killed_lose_nothing(
    installation: Installation,
) -> None:
    async with agents_of(installation, "restarts") as agents:
        async with agents.at_work():
            for act in (installation.project.restart, installation.project.crash):
                for service in SERVICES:
                    await agents.make_progress()
                    await to_thread(act, service)
                    await to_thread(installation.until_healthy, service)
                    await agents.make_progress()

        await summary_in_force(agents)
        counts = await agents.check()

        assert counts["versions"] > 0


@pytest.mark.proves("O2", "L10")
async def test_a_restored_backup_and_the_stream_bring_everything_back(
    installation: Installation,
) -> None:
    project = installation.project
    async with agents_of(installation, "backups") as agents:
        async with agents.at_work():
            await agents.make_progress()
            dump = ("pg_dump", *DATABASE, "--format=custom")
            dumped = await to_thread(project.exec, "postgres", *dump)
            await agents.make_progress()
        before = await agents.check()
        await to_thread(project.stop, "nats")
        stream = await to_thread(project.pack_volume, "streams")

        await to_thread(lose_everything, installation)
        await to_thread(project.unpack_volume, "streams", stream)
        await to_thread(project.up, "nats", "postgres")
        await to_thread(installation.until_healthy, "nats", "postgres")
        restore = ("pg_restore", *DATABASE, "--no-owner", "--exit-on-error")
        await to_thread(project.exec, "postgres", *restore, stdin=dumped)
        restored = await installation.counts("backups")
        await to_thread(project.up)
        await to_thread(installation.until_healthy, *SERVICES)

        assert 0 < restored["messages"] < before["messages"]
        assert (await agents.check())["messages"] == before["messages"]
        async with agents.at_work():
            await agents.make_progress()
        await agents.check()


@pytest.mark.proves("O2", "C82", "L1", "L2")
async def test_an_upgrade_from_the_previous_release_loses_nothing(
    engine: Engine, previous_source: Path, previous: str, today: str
) -> None:
    with running_installation(engine, previous_source, previous) as installation:
        project = installation.project
        async with agents_of(installation, "support") as agents:
            async with agents.at_work():
                await agents.make_progress()
                before = await installation.counts("support")
                statuses = [await status_of_news(installation)]

                project.compose = installation.take(ROOT, today)
                await installation.run("migrate", "migrate")
                await to_thread(installation.write_accounts)
                await installation.reload_nats()
                for service in ("worker", "query", "query-more", "nats"):
                    await to_thread(project.replace, service)
                    await to_thread(installation.until_healthy, service)
                    await agents.make_progress()
                statuses.append(await status_of_news(installation))

            await summary_in_force(agents)
            after = await agents.check()
            await installation.run("migrate", "doctor")

            assert after["messages"] > before["messages"] > 0
            # Only today's release has figures of an installation over HTTP.
            assert statuses == [404, 200]


async def status_of_news(installation: Installation) -> int:
    """Return the status of an answer that the previous release does not know."""
    async with installation.http(installation.token) as operator:
        return (await operator.get("/v1/stats")).status_code


def lose_everything(installation: Installation) -> None:
    """Remove all containers, and the volumes with them."""
    services = ("query-more", "query", "worker", "migrate", "nats", "postgres")
    installation.project.stop(*services)
    installation.project.remove(*services)
    for volume in installation.project.compose["volumes"]:
        installation.project.remove_volume(volume)
