"""The parts that the loops and the request handlers of a worker share."""

from dataclasses import dataclass, field

from turnfold.core.text.tokens import Count
from turnfold.model_info.context_windows import ModelWindows, installed_windows
from turnfold.models import ChildSummarizer
from turnfold.nats_client.connection import NatsClient
from turnfold.operations.compact.attempt import SummaryConfig
from turnfold.operations.policy import policy_resolver
from turnfold.ports.ingest import Installation
from turnfold.process.ready import ProcessAnnouncer
from turnfold.process.watchdog import Watchdog
from turnfold.settings import Settings
from turnfold.store.database.engine import Database
from turnfold_worker.health import WorkerHealth
from turnfold_worker.metrics import WorkerMetrics
from turnfold_worker.receiver.child import Decode, decoder
from turnfold_worker.receiver.parent import Receiver


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The watchdog, the metrics and the health of a worker."""

    watchdog: Watchdog
    metrics: WorkerMetrics = field(default_factory=WorkerMetrics)
    health: WorkerHealth = field(default_factory=WorkerHealth)


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The parts of a running worker, besides its loops. Their creator closes them."""

    settings: Settings
    database: Database
    client: NatsClient
    receiver: Receiver
    summarizer: ChildSummarizer
    announcer: ProcessAnnouncer
    telemetry: Telemetry
    installation: Installation
    summary_config: SummaryConfig
    decode: Decode


def make_context(
    settings: Settings,
    *,
    database: Database,
    client: NatsClient,
    receiver: Receiver,
    summarizer: ChildSummarizer,
    announcer: ProcessAnnouncer,
    telemetry: Telemetry,
    count: Count,
) -> WorkerContext:
    """Derive the installation and the functions of a worker from its settings."""
    windows = installed_windows()
    # At the start, and not in the transaction of the first event.
    windows.read()
    return WorkerContext(
        settings=settings,
        database=database,
        client=client,
        receiver=receiver,
        summarizer=summarizer,
        announcer=announcer,
        telemetry=telemetry,
        installation=Installation(
            policy_resolver(settings.preset, settings.policy_of, settings.allowance),
            model_window=lambda model, policy: windows(model, override=policy.context_window),
            count=count,
            max_sessions=settings.max_sessions_per_agent,
            allowance=settings.allowance,
        ),
        summary_config=_summary_config(settings, windows),
        decode=decoder(settings, count),
    )


def _summary_config(settings: Settings, windows: ModelWindows) -> SummaryConfig:
    return SummaryConfig(
        model=settings.summary_model,
        api_base=settings.summary_api_base,
        api_key=settings.summary_api_key,
        key_models=settings.key_models,
        allowance=settings.allowance,
        call_timeout_seconds=settings.summary_timeout_seconds,
        job_timeout_seconds=settings.summary_job_timeout_seconds,
        lease_seconds=settings.summary_lease_seconds,
        window=lambda model: windows(model, override=settings.summary_window),
        task=settings.summary_prompt,
        redactions=settings.redact_patterns,
    )
