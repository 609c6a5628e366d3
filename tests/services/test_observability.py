"""Whoever looks at a running system sees what it does: figures, traces, health and logs; and never what a user wrote."""

import asyncio
import json
import os
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest
import pytest_asyncio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from ruamel.yaml import YAML

from tests.model_server import ModelServer, running_model_server
from tests.nats_server import NatsServer
from tests.ports import free_port
from tests.running_system import (
    System,
    client_of,
    eventually,
    readiness,
    running_parts,
    running_system,
    wait_until,
)
from turnfold.bus.pull import PullConsumer
from turnfold.bus.streams import ensure_streams
from turnfold.contracts.subjects import EVENTS_CONSUMER, EVENTS_STREAM
from turnfold.errors import BadRequest
from turnfold_query.metrics import QueryMetrics

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
SECRETS = ("quokka", "wombat", "numbat", "bilby", "potoroo", "dunnart")
"""Words that users, tools and models write in these tests, and nobody else."""
AGENT = """
import asyncio
import turnfold


async def main() -> None:
    async with turnfold.connect() as client:
        session = client.session("ada", "traced")
        for number in range(16):
            asked = {"role": "user", "content": f"Where is the quokka {number}? " + "why " * 40}
            await session.turn_completed([asked, {"role": "assistant", "content": "With the wombat."}])
        print(len((await session.context(wait_ms=5_000)).messages))


asyncio.run(main())
"""
"""An agent as it is written every day."""


@dataclass
class Collector:
    """An OTLP receiver: the spans that came, each with the service that sent it."""

    url: str = ""
    raw: list[bytes] = field(default_factory=list)

    def spans(self) -> list[tuple[str, Span]]:
        found = []
        for body in list(self.raw):
            for of_service in ExportTraceServiceRequest.FromString(body).resource_spans:
                named = {one.key: one.value.string_value for one in of_service.resource.attributes}
                found += [
                    (named["service.name"], span)
                    for scope in of_service.scope_spans
                    for span in scope.spans
                ]
        return found


@contextmanager
def running_collector() -> Generator[Collector]:
    collector = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.raw.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Leave standard error to the tests."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Scene:
    """A system that is looked at from every side, after it has been through a good deal."""

    system: System
    collector: Collector
    model: ModelServer
    traces: Mapping[str, str]

    async def metrics(self, service: str) -> str:
        url = self.system.http_url if service == "query" else self.system.ready["worker_url"]
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(f"{url}/metrics")).raise_for_status().text

    async def figure(self, service: str, line: str) -> float:
        """The value of one line of the figures; 0 while there is none."""
        found = re.search(rf"^{re.escape(line)} (\S+)$", await self.metrics(service), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def log(self) -> str:
        return self.system._log.read_text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    with running_collector() as collector:
        traces = {
            "TURNFOLD_TRACES": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        async with running_model_server() as model:
            settings = {
                "TURNFOLD_SUMMARY_MODEL": "openai/gpt-5",
                "TURNFOLD_SUMMARY_API_BASE": model.url,
                "TURNFOLD_SUMMARY_API_KEY": "none",
                "TURNFOLD_LOG_LEVEL": "debug",
                "TURNFOLD_LOG_FORMAT": "json",
                "TURNFOLD_POLICY__MAX_LIVE_MESSAGES": "12",
                "TURNFOLD_POLICY__MIN_GAIN_TOKENS": "1",
                "TURNFOLD_POLICY__KEEP_TOKENS": "0",
            }
            directory = tmp_path_factory.mktemp("seeing") / "data"
            async with running_system(directory, environ=settings | traces) as system:
                made = Scene(system, collector, model, traces)
                await live(made)
                yield made


async def live(scene: Scene) -> None:
    """Users, tools and models say secret things, in good requests and in bad ones."""
    scene.model.script = ["quote", "broken"]
    async with client_of(scene.system) as client, await nats.connect(scene.system.nats_url) as bus:
        for name in ("quoted", "written"):
            session = client.session("ada", name)
            for number in range(8):
                call = {
                    "id": f"c{number}",
                    "type": "function",
                    "function": {"name": "find_bilby", "arguments": '{"q": "potoroo"}'},
                }
                said: list[dict[str, Any]] = [
                    {"role": "user", "content": f"Where is the quokka {number}? " + "why " * 40}
                ]
                said.append(
                    {"role": "assistant", "content": "The wombat knows.", "tool_calls": [call]}
                )
                await session.turn_completed(said, metadata={"note": "numbat"})
                await session.tool_result(f"c{number}", {"found": "dunnart"}, name="find_bilby")
        for payload in (b"}{ quokka", b'{"event_id": "e", "messages": "quokka"}', b'{"quokka": 1}'):
            await bus.jetstream().publish("turn.completed.ada.written", payload)
        for request in (b'{"max_tokens": "quokka"}', b"quokka", b'{"quokka": 1}'):
            await bus.request("context.get.ada.written", request, timeout=10)
        await bus.request("compaction.request.ada.written", b"quokka", timeout=10)
        session = client.session("ada", "written")
        window = await session.context(wait_ms=5_000)
        await session.search("the quokka")
        assert await session.context(known=window) is window
        with pytest.raises(BadRequest):
            await session.policy(overrides={"quokka": 1})
    async with scene.system.http() as http:
        path = "/v1/agents/ada/sessions/written"
        await http.post(f"{path}/events", content=b"quokka")
        await http.get(f"{path}/context", params={"max_tokens": "quokka"})
        await http.patch(f"{path}/policy", content=b"quokka")
        await http.get("/quokka")

    async def summarised() -> bool:
        return bool(await scene.figure("worker", 'turnfold_summary_seconds_count{kind="llm"}'))

    await eventually(summarised, seconds=60, told=scene.log)


# --- logs


@pytest.mark.proves("O4", "X4")
async def test_no_log_has_what_a_user_a_tool_or_a_model_wrote(scene: Scene) -> None:
    lines = [json.loads(line) for line in scene.log().splitlines()]

    told = {(line["role"], line["event"]) for line in lines}
    assert {
        ("worker", "batch.stored"),
        ("worker", "events.dead_lettered"),
        ("worker", "summary.committed"),
    } <= told
    assert ("query", "query.started") in told
    assert not [line for line in lines for secret in SECRETS if secret in json.dumps(line).lower()]


# --- traces


@pytest.mark.proves("O4")
async def test_one_trace_leads_from_an_agents_publish_to_the_commit_of_the_summary(
    scene: Scene,
) -> None:
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", AGENT),
        env=os.environ | scene.traces | {"TURNFOLD_NATS_URL": scene.system.nats_url},
        stdout=-1,
    )
    assert (await agent.communicate())[0].strip(), agent.returncode

    def way() -> list[tuple[str, Span]]:
        """From a commit back to where its trace began."""
        spans = scene.collector.spans()
        known = {span.span_id: (service, span) for service, span in spans}
        for service, span in spans:
            steps = [(service, span)]
            while steps[-1][1].parent_span_id in known:
                steps.append(known[steps[-1][1].parent_span_id])
            if span.name == "commit" and steps[-1][1].name == "publish":
                return steps
        return []

    await wait_until(
        lambda: len(way()) == 5,
        told=lambda: sorted((service, span.name) for service, span in scene.collector.spans()),
    )
    assert [(service, span.name) for service, span in reversed(way())] == [
        ("turnfold-agent", "publish"),
        ("turnfold-worker", "ingest"),
        ("turnfold-worker", "evict"),
        ("turnfold-worker", "compact"),
        ("turnfold-worker", "commit"),
    ]
    assert len({span.trace_id for _, span in way()}) == 1
    compact = way()[1][1].span_id
    assert {"summarise", "commit"} <= {
        span.name for _, span in scene.collector.spans() if span.parent_span_id == compact
    }
    asked = {
        service: span
        for service, span in scene.collector.spans()
        if span.name == "context.get" and span.trace_id == _asked(scene)
    }
    assert asked["turnfold-query"].parent_span_id == asked["turnfold-agent"].span_id


def _asked(scene: Scene) -> bytes:
    """The trace in which the agent asked for its window."""
    return next(
        span.trace_id
        for service, span in scene.collector.spans()
        if (service, span.name) == ("turnfold-agent", "context.get")
    )


@pytest.mark.proves("O4")
async def test_an_event_that_comes_over_http_is_traced_from_the_request_on(scene: Scene) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    event = {
        "type": "turn.completed",
        "event_id": "h1",
        "agent_id": "ada",
        "session_id": "http",
        "messages": [{"role": "user", "content": "Hi"}],
    }
    async with scene.system.http() as http:
        headers = {"traceparent": f"00-{trace}-{parent}-01"}
        (
            await http.post("/v1/agents/ada/sessions/http/events", json=event, headers=headers)
        ).raise_for_status()

    def seen() -> dict[str, Span]:
        return {
            span.name: span for _, span in scene.collector.spans() if span.trace_id.hex() == trace
        }

    await wait_until(lambda: len(seen()) == 3, told=lambda: sorted(seen()))
    request = seen()["POST /v1/agents/{agent_id}/sessions/{session_id}/events"]
    assert request.parent_span_id.hex() == parent
    assert seen()["publish"].parent_span_id == request.span_id
    assert seen()["ingest"].parent_span_id == seen()["publish"].span_id


@pytest.mark.proves("O4")
async def test_no_span_has_what_a_user_wrote_or_who_it_was(scene: Scene) -> None:
    await wait_until(lambda: any(span.name == "commit" for _, span in scene.collector.spans()))

    sent = b"".join(scene.collector.raw).lower()

    assert not [word for word in (*SECRETS, "traced", "quoted") if word.encode() in sent]


async def test_without_traces_nothing_is_loaded_that_makes_or_sends_them() -> None:
    program = "import sys, turnfold.client.connection, turnfold_query.app, turnfold_worker.app; print([*sys.modules])"

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )

    told = (await process.communicate())[0]
    assert b"turnfold.observability.tracing" in told
    assert b"opentelemetry.sdk" not in told
    assert b"opentelemetry.exporter" not in told
    assert process.returncode == 0


LAST_SPAN = """
from turnfold.observability import tracing

tracing.begin("test")
with tracing.span("last"):
    pass
"""


async def told_at_the_end(collector_url: str) -> str:
    """Run a program that records a span, and return what it prints as an error."""
    environ = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector_url}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LAST_SPAN, env=environ, stderr=asyncio.subprocess.PIPE
    )
    told = (await process.communicate())[1].decode()
    assert process.returncode == 0, told
    return told


@pytest.mark.proves("O4")
async def test_the_end_of_a_process_waits_for_its_last_spans_but_not_long() -> None:
    with running_collector() as collector, socket.create_server(("127.0.0.1", 0)) as silent:
        usual = await told_at_the_end(collector.url)
        # OpenTelemetry by itself would wait for ten seconds, and say that it has.
        briefly = await told_at_the_end(f"http://127.0.0.1:{silent.getsockname()[1]}")

    assert [span.name for _, span in collector.spans()] == ["last"]
    assert (usual, briefly) == ("", "")


@pytest.mark.proves("O4", "O5")
async def test_traces_without_their_packages_say_what_to_install() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; from turnfold.cli import main; main(['worker'])"

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        env=os.environ | {"TURNFOLD_TRACES": "1"},
        stderr=asyncio.subprocess.PIPE,
    )

    told = (await process.communicate())[1].decode()
    assert process.returncode == 1
    assert told.startswith(
        "turnfold: TURNFOLD_TRACES needs the package opentelemetry; install 'turnfold[tracing]'"
    )


# --- figures


@pytest.mark.proves("O4")
async def test_the_figures_tell_what_happened(scene: Scene) -> None:
    worker, query = await scene.metrics("worker"), await scene.metrics("query")

    def value(text: str, line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
        assert found, f"no {line} in\n{text}"
        return float(found[1])

    assert value(worker, "turnfold_ready") == value(query, "turnfold_ready") == 1
    assert value(worker, "turnfold_events_stored_total") >= 32
    assert value(worker, "turnfold_messages_stored_total") >= 48
    assert value(worker, "turnfold_events_buried_total") == 3
    assert value(worker, "turnfold_evictions_total") >= 2
    assert value(worker, "turnfold_batch_events_sum") >= 35
    assert (
        value(worker, 'turnfold_attempts_total{outcome="committed",reason="provider_error"}') >= 1
    )
    assert value(worker, 'turnfold_attempts_total{outcome="given_back",reason="unparsable"}') >= 1
    assert (
        value(worker, 'turnfold_model_tokens_total{direction="prompt",model="openai/gpt-5"}') >= 321
    )
    assert value(worker, 'turnfold_model_cost_dollars_total{model="openai/gpt-5"}') > 0
    assert value(worker, "turnfold_tokens_saved_total") > 0
    assert value(query, 'turnfold_answers_total{freshness="fresh"}') >= 1
    assert value(query, 'turnfold_answers_total{freshness="not_modified"}') == 1
    assert value(query, "turnfold_window_build_seconds_count") >= 1
    assert value(query, 'turnfold_request_seconds_bucket{le="+Inf",request="context.get"}') >= 2
    assert (
        value(query, 'turnfold_requests_refused_total{code="bad_request",request="context.get"}')
        == 2
    )


@pytest.mark.proves("O4")
@pytest.mark.parametrize("name", ["context.get", "history.get", "history.search"])
async def test_the_time_to_answer_has_the_wait_for_an_event_in_it(scene: Scene, name: str) -> None:
    line = f'turnfold_request_seconds_sum{{request="{name}"}}'
    before = await scene.figure("query", line)
    async with client_of(scene.system) as client:
        asked = {"after": 10**9, "wait_ms": 1_000} | ({"q": "x"} if "search" in name else {})
        answer = await client.session("ada", "written").ask(name, asked, patience_seconds=1)

    assert answer["fresh"] is False
    assert await scene.figure("query", line) - before > 0.9


@pytest.mark.proves("O4", "A6")
async def test_a_reason_whose_dead_letters_are_erased_is_counted_no_more() -> None:
    metrics = QueryMetrics()
    metrics.count_dead_letters({"not_json": 2, "too_deep": 1})

    metrics.count_dead_letters({"too_deep": 1})

    assert re.findall(r"^turnfold_dead_letters\{.*", metrics.text().decode(), re.MULTILINE) == [
        'turnfold_dead_letters{reason="too_deep"} 1.0'
    ]


def families(text: str) -> dict[str, str]:
    """The metrics of ours in a page of figures, with their types."""
    return {
        name: kind
        for name, kind in re.findall(r"^# TYPE (turnfold_\w+) (\w+)$", text, re.MULTILINE)
        if not name.endswith("_created")
    }


def series(text: str) -> set[str]:
    """The names that a query may use."""
    named = {"counter": [""], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
    theirs = set(re.findall(r"^(process_\w+)", text, re.MULTILINE))
    return (
        theirs
        | {name + suffix for name, kind in families(text).items() for suffix in named[kind]}
        | {"up"}
    )


@pytest.mark.proves("O4")
async def test_the_reference_names_every_figure_and_no_other(scene: Scene, tmp_path: Path) -> None:
    script = str(ROOT / "scripts" / "reference-pages")
    program = await asyncio.create_subprocess_exec(sys.executable, script, str(tmp_path))
    assert await program.wait() == 0
    ours, _, theirs = (tmp_path / "metrics.md").read_text().partition("## Query servers")
    theirs, _, _ = theirs.partition("## Proxy")
    told = [
        (name, service, kind)
        for service, part in (("worker", ours), ("query", theirs))
        for name, kind in re.findall(r"^\| `(turnfold_\w+)` \| (\w+) \|", part, re.MULTILINE)
    ]

    real = [
        (name, service, kind)
        for service in ("worker", "query")
        for name, kind in families(await scene.metrics(service)).items()
    ]

    assert sorted(told) == sorted(real)


def queries() -> Iterator[str]:
    """What the dashboard and the alerts ask."""
    board = json.loads((ROOT / "deploy" / "grafana" / "turnfold.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    alerts = YAML(typ="safe").load(ROOT / "deploy" / "prometheus" / "alerts.yaml")
    yield from (rule["expr"] for group in alerts["groups"] for rule in group["rules"])


LABELS = re.compile(r"\{[^}]*\}|\b(?:by|without|on|ignoring) \([^)]*\)|\[[^\]]*\]|\"[^\"]*\"")


@pytest.mark.proves("O4")
async def test_the_dashboard_and_the_alerts_ask_only_for_figures_that_there_are(
    scene: Scene,
) -> None:
    there = series(await scene.metrics("worker")) | series(await scene.metrics("query"))
    asked = {
        name
        for query in queries()
        for name in re.findall(r"[a-z]\w*\b(?!\s*\()", LABELS.sub("", query))
    }

    assert len(asked) > 20
    assert asked - there - {"and"} == set()


async def test_the_dashboard_shows_each_panel_once_and_beside_the_others() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "turnfold.json").read_text())
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]

    assert len(places) == len(set(places)) == len({panel["id"] for panel in board["panels"]})
    assert all(
        panel["title"] and (panel["type"] == "row" or panel["targets"]) for panel in board["panels"]
    )


# --- health


@pytest.mark.proves("O4")
async def test_a_worker_at_work_says_so_and_how_far_behind_it_is(scene: Scene) -> None:
    async with httpx.AsyncClient(
        base_url=scene.system.ready["worker_url"], trust_env=False
    ) as http:
        health, ready = await http.get("/healthz"), await http.get("/readyz")

    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert (ready.status_code, ready.json()["missing"]) == (200, [])
    assert {"lag_events", "lag_seconds", "fetch_age_seconds", "write_age_seconds"} <= set(
        ready.json()
    )


@pytest.mark.proves("O4", "O2")
async def test_who_stands_by_or_has_lost_the_bus_is_not_ready_and_a_lost_consumer_ends_a_worker(
    tmp_path: Path,
) -> None:
    ports = [free_port(), free_port()]

    async def missing(port: int, told: str) -> bool:
        status, said = await readiness(port)
        return status == 503 and any(told in one for one in said["missing"])

    async with running_parts(tmp_path) as parts:
        parts.environ["TURNFOLD_WORKER_HTTP_PORT"] = str(ports[0])
        async with parts.running("worker") as first:
            parts.environ["TURNFOLD_WORKER_HTTP_PORT"] = str(ports[1])
            async with parts.running("worker", is_awaited=False):
                await eventually(
                    lambda: missing(ports[1], "another worker holds the writer lock"),
                    told=parts.words,
                )
            parts.server.kill()
            await eventually(
                lambda: missing(ports[0], "the bus is not connected"), told=parts.words
            )
            parts.server.start()

            async def is_ready() -> bool:
                status, said = await readiness(ports[0])
                return status == 200 and said["fetch_age_seconds"] < 2.5

            await eventually(is_ready, told=parts.words)
            async with await nats.connect(parts.server.url) as bus:
                await bus.jetstream().delete_consumer(EVENTS_STREAM, EVENTS_CONSUMER)
            assert await first.ended() == 1, parts.words()


@pytest.mark.proves("O4")
async def test_a_pull_hears_its_consumer_as_long_as_there_is_room_for_more(
    server: NatsServer,
) -> None:
    async with await nats.connect(server.url) as bus:
        await ensure_streams(bus, first_seq=1)
        pull = PullConsumer(bus, stream=EVENTS_STREAM, consumer=EVENTS_CONSUMER, ahead=8)
        await pull.start()
        await wait_until(lambda: (pull.activity or 0) > 1)
        for _ in range(8):
            await bus.jetstream().publish("turn.completed", b"{}")

        await wait_until(lambda: pull.activity is None)
        batch = await pull.take(8)
        await pull.acknowledge(batch)

        await wait_until(lambda: pull.activity is not None and pull.idle_seconds < 2.0)
        await pull.stop()
