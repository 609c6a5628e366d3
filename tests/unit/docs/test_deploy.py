"""The manifests for Kubernetes say what the other installations say; alerts lead to pages that are there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML
from typer.main import get_group

from turnfold.cli.application import application
from turnfold.operations.compact.compact import Committed, Retry, RolledBack
from turnfold.process import http_server
from turnfold.settings.parsers import SETTING_NAMES
from turnfold.settings.reading import as_variable
from turnfold.store.database.sqlite_files import BUSY_SECONDS
from turnfold_worker.app import STOP_SECONDS
from turnfold_worker.metrics import WorkerMetrics

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
Json = dict[str, Any]


def documents(path: Path) -> list[Json]:
    """The documents of a file."""
    return list(YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8")))


MANIFESTS = [
    one for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) for one in documents(path)
]
WORKLOADS = {
    one["metadata"]["name"]: one
    for one in MANIFESTS
    if one["kind"] in {"Deployment", "StatefulSet", "Job"}
}
OURS = sorted(set(WORKLOADS) - {"nats"})


def pod(name: str) -> Json:
    """The specification of the pods of a workload."""
    specification: Json = WORKLOADS[name]["spec"]["template"]["spec"]
    return specification


def container(name: str) -> Json:
    """The only container of a workload."""
    [only] = pod(name)["containers"]
    return dict(only)


def secrets(name: str) -> set[str]:
    """The Secrets that a workload mounts."""
    return {
        source["secret"]["name"]
        for volume in pod(name)["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
        if "secret" in source
    }


@pytest.mark.parametrize("name", OURS)
def test_a_workload_runs_a_command_that_is_there_with_settings_that_are_known(name: str) -> None:
    [command] = container(name)["args"]
    variables = {one["name"] for one in container(name)["env"]}

    assert name == f"turnfold-{command}"
    assert command in get_group(application([command])).commands
    assert variables <= {as_variable(known) for known in SETTING_NAMES}
    # Variables of the Service `turnfold` would be taken for settings.
    assert pod(name)["enableServiceLinks"] is False


@pytest.mark.proves("X1")
@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("turnfold-migrate", "provisioner"),
        ("turnfold-worker", "worker"),
        ("turnfold-query", "query"),
    ],
)
def test_a_workload_has_the_key_of_its_role_and_no_other(name: str, role: str) -> None:
    values = {one["name"]: one["value"] for one in container(name)["env"]}
    keys = {"turnfold-provisioner", "turnfold-worker", "turnfold-query", "turnfold-operator"}

    assert values["TURNFOLD_NATS_NKEY"] == f"/etc/turnfold/{role}.nk"
    assert secrets(name) & keys == {f"turnfold-{role}"}


def test_the_page_on_operations_makes_each_secret_from_what_make_secrets_writes() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    page = page.partition("### Kubernetes")[2].partition("\n## ")[0]
    written = (DEPLOY / "make-secrets").read_text() + " tokens.json"
    made = set(re.findall(r"secret generic (turnfold-[\w-]+) --from-file", page))
    [roles] = re.findall(r"for name in ([\w ]+); do", page)
    made |= {f"turnfold-{role}" for role in roles.split()}

    assert made == set[str]().union(*map(secrets, WORKLOADS))
    for file in re.findall(r"--from-file=secrets/([\w.-]+)", page):
        assert file in written


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_pods_have_no_privileges_and_write_to_volumes_alone(name: str) -> None:
    rights = container(name)["securityContext"]

    assert pod(name)["securityContext"]["runAsNonRoot"] is True
    assert pod(name)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(name)["automountServiceAccountToken"] is False
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert container(name)["resources"]["limits"]["memory"]


def test_workers_have_the_time_to_stop_and_query_servers_require_tokens() -> None:
    assert pod("turnfold-worker")["terminationGracePeriodSeconds"] > STOP_SECONDS
    variables = {one["name"] for one in container("turnfold-query")["env"]}
    assert "TURNFOLD_HTTP_TOKENS" in variables
    assert "TURNFOLD_HTTP_CHECKED_ELSEWHERE" not in variables


def test_a_query_server_takes_connections_until_its_service_sends_no_more() -> None:
    program, seconds = container("turnfold-query")["lifecycle"]["preStop"]["exec"]["command"]
    grace_seconds = pod("turnfold-query")["terminationGracePeriodSeconds"]

    # The end of a pod and its removal from the Service begin together, and nodes learn of it later.
    assert program == "sleep"
    assert 3 <= int(seconds) < grace_seconds - http_server.STOP_SECONDS


def test_names_labels_and_versions_agree() -> None:
    labels = {
        name: one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        for name, one in WORKLOADS.items()
    }
    [image] = {container(name)["image"] for name in WORKLOADS}

    assert all(name == label for name, label in labels.items())
    assert image in (ROOT / "compose.yaml").read_text()
    for one in MANIFESTS:
        if one["kind"] != "Namespace":
            assert one["metadata"]["namespace"] == "turnfold"
        for chosen in selectors(one):
            assert chosen in labels.values()


def ports(name: str) -> dict[str, int]:
    """The ports of a workload's container by name."""
    return {one["name"]: one["containerPort"] for one in container(name).get("ports", ())}


FILES = {"turnfold.toml": "turnfold-settings", "tokens.json": "turnfold-tokens"}
"""The Secrets of files that are not keys."""


@pytest.mark.parametrize("name", OURS)
def test_a_workload_reads_files_that_are_mounted_and_listens_where_it_is_asked(name: str) -> None:
    one = container(name)
    values = {variable["name"]: variable["value"] for variable in one["env"]}
    files = {Path(value) for value in values.values() if value.startswith("/etc/turnfold/")}
    asked = {"startupProbe", "livenessProbe", "readinessProbe"} & set(one)

    assert {FILES.get(file.name, f"turnfold-{file.stem}") for file in files} == secrets(name)
    assert {volume["name"] for volume in pod(name)["volumes"]} == {
        mount["name"] for mount in one["volumeMounts"]
    }
    assert {int(values[key]) for key in values if key.endswith("_HTTP_PORT")} == {
        *ports(name).values()
    }
    assert {one[probe]["httpGet"]["port"] for probe in asked} == set(ports(name))
    assert len(asked) == (3 if ports(name) else 0)


def test_services_and_policies_name_ports_on_which_their_pods_listen() -> None:
    addresses = set()
    for one in MANIFESTS:
        for chosen in selectors(one):
            if one["kind"] == "Service":
                [port] = one["spec"]["ports"]
                addresses.add(f"nats://{one['metadata']['name']}:{port['port']}")
                assert port["targetPort"] in ports(chosen)
            for rule in one["spec"].get("ingress", ()):
                assert {port["port"] for port in rule["ports"]} == set(ports(chosen).values())
    for name in OURS:
        [url] = [one["value"] for one in container(name)["env"] if one["name"].endswith("NATS_URL")]
        assert url in addresses


def selectors(manifest: Json) -> Iterator[str]:
    """The names of workloads that a manifest chooses."""
    specification = manifest.get("spec") or {}
    selector = specification.get("podSelector") or specification.get("selector") or {}
    chosen = selector.get("matchLabels", selector).get("app.kubernetes.io/name")
    if chosen:
        yield chosen


def test_the_nats_server_has_the_same_configuration_everywhere() -> None:
    [config] = [one for one in MANIFESTS if one["kind"] == "ConfigMap"]

    assert (
        config["data"]["nats-server.conf"].strip()
        == (DEPLOY / "nats-server.conf").read_text().strip()
    )


def test_the_health_of_the_nats_server_is_asked_alike_everywhere() -> None:
    compose = documents(ROOT / "compose.yaml")[0]["services"]["nats"]

    command = container("nats")["readinessProbe"]["exec"]["command"]

    assert command == compose["healthcheck"]["test"][1:]


def test_prometheus_signs_in_at_query_servers_which_require_tokens_here() -> None:
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    jobs = {job["job_name"]: job for job in YAML(typ="safe").load(block)["scrape_configs"]}

    # Otherwise `up` is 0, and TurnfoldDown fires while all is well.
    assert jobs["turnfold-query"]["authorization"] == {"credentials": "OPERATOR_TOKEN"}


def test_each_log_line_that_an_alert_names_is_one_that_is_written() -> None:
    text = (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    told = re.findall(r"\b(?:batch|events?|process|lane|child|summary|attempt)\.[a-z_]+\b", text)
    code = [
        path.read_text(encoding="utf-8")
        for folder in ("shared", "services")
        for path in (ROOT / folder).rglob("*.py")
    ]

    assert {"process.hung", "batch.requeued"} <= set(told)
    for name in told:
        assert any(f'"{name}"' in text for text in code), name


def test_each_alert_leads_to_a_heading_of_the_documentation() -> None:
    [rules] = documents(DEPLOY / "prometheus" / "alerts.yaml")
    for group in rules["groups"]:
        for rule in group["rules"]:
            url = rule["annotations"]["runbook_url"]
            found = re.fullmatch(r"\{\{ \$externalLabels\.turnfold_docs \}\}/(\w+)\.html#(.+)", url)
            assert found, rule["alert"]
            page = (ROOT / "docs" / f"{found[1]}.md").read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
            assert found[2] in {heading.lower().replace(" ", "-") for heading in headings}


def increase(times: range, *, now: int, seconds: int, scrapes: range) -> float:
    """The increase of a counter over the last seconds, extrapolated as Prometheus does."""
    samples = [at for at in scrapes if now - seconds < at <= now]
    if len(samples) < 2:
        return 0
    before, counted = (sum(time <= at for time in times) for at in (samples[0], samples[-1]))
    sampled = samples[-1] - samples[0]
    apart = sampled / (len(samples) - 1)
    ends = [samples[0] - now + seconds, now - samples[-1]]
    first, last = (end if end < 1.1 * apart else apart / 2 for end in ends)
    if counted > before:
        # A counter was never below zero.
        first = min(first, sampled * before / (counted - before))
    return (counted - before) * (first + sampled + last) / sampled


@pytest.mark.parametrize(
    ("returned_at", "fires"),
    [
        # As a locked SQLite database does: each attempt waits for the lock.
        (range(BUSY_SECONDS, 1_200, 2 * BUSY_SECONDS), True),
        # As PostgreSQL does while it restarts: all attempts fail at once.
        (range(60), False),
        # As two workers do that meet at one event now and then.
        (range(0, 1_200, 150), False),
        (range(0), False),
    ],
    ids=["locked", "restarted", "now and then", "well"],
)
@pytest.mark.parametrize("apart", [15, 30, 60])
def test_the_alert_of_a_database_that_refuses_fires_while_it_does(
    returned_at: range, fires: bool, apart: int
) -> None:
    [rules] = documents(DEPLOY / "prometheus" / "alerts.yaml")
    [rule] = [
        rule for rule in rules["groups"][0]["rules"] if rule["alert"] == "TurnfoldDatabaseRefuses"
    ]
    query = re.fullmatch(
        r"sum\(increase\(turnfold_batches_returned_total\[(\d+)m\]\)\) >= (\d+)", rule["expr"]
    )
    assert query
    seconds, least, held = (
        60 * int(query[1]),
        int(query[2]),
        60 * int(rule["for"].removesuffix("m")),
    )

    for phase in range(0, apart, 5):
        scrapes = range(phase - 600, 1_200, apart)
        is_true = [
            increase(returned_at, now=now, seconds=seconds, scrapes=scrapes) >= least
            for now in range(0, 1_200, apart)
        ]
        times = held // apart

        has_fired = any(all(is_true[at : at + times + 1]) for at in range(len(is_true) - times))
        assert has_fired == fires


def selected(metrics: WorkerMetrics, matchers: str) -> float:
    """The sum of the attempts that the matchers of a query select."""
    wanted = re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', matchers)
    assert wanted
    return sum(
        sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == "turnfold_attempts_total"
        and all(
            (re.fullmatch(value, sample.labels[name]) is None) == (operator == "!=")
            for name, operator, value in wanted
        )
    )


@pytest.mark.parametrize(
    ("outcome", "share"),
    [
        (Committed(1, None), 0.0),
        (Committed(1, "timeout"), 1.0),
        # Without a stand-in (the preset `selective`), nothing is ever committed while a model fails.
        (RolledBack("timeout"), 1.0),
        (RolledBack("grew"), 1.0),
        (RolledBack(None), 0.0),
    ],
)
def test_the_alert_of_a_failing_model_counts_what_ends_without_its_summary(
    outcome: Committed | RolledBack, share: float
) -> None:
    metrics = WorkerMetrics()
    metrics.attempted(Retry("timeout"))
    metrics.attempted(outcome)
    [rules] = documents(DEPLOY / "prometheus" / "alerts.yaml")
    [query] = [
        rule["expr"]
        for rule in rules["groups"][0]["rules"]
        if rule["alert"] == "TurnfoldModelFailing"
    ]

    failed, all_ended = re.findall(r"turnfold_attempts_total\{([^}]*)\}", query)

    assert selected(metrics, failed) / (selected(metrics, all_ended) or 1.0) == share
