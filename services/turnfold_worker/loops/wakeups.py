"""Events between the loops of a worker."""

import asyncio

from turnfold.core.eviction.triggers import SUMMARY_DELAY_MS
from turnfold.ports.compact import Job, JobKind
from turnfold.ports.ingest import IngestResult


class Wakeups:
    """One event per loop that others wake. No loop holds a reference to the loops it wakes.

    Each method states what happened, and wakes the loops that may have work now.
    """

    def __init__(self) -> None:
        self.compactor = asyncio.Event()
        self.relay = asyncio.Event()
        self.campaigns = asyncio.Event()
        self.idle = asyncio.Event()
        self.indexer = asyncio.Event()

    def after_batch(self, result: IngestResult) -> None:
        """Wake for the messages of a stored batch; for its jobs and notices after their delay.

        The window request that follows a turn is served before its summary is written.
        """
        if result.messages:
            self.indexer.set()
        # A retraction may leave messages without a version.
        if result.evictions or result.retractions:
            self.after_new_jobs()

    def after_new_jobs(self) -> None:
        """Wake for new jobs and their notices, when the delay of these jobs is over."""
        loop = asyncio.get_running_loop()
        loop.call_later(SUMMARY_DELAY_MS / 1000, self.relay.set)
        loop.call_later(SUMMARY_DELAY_MS / 1000, self.compactor.set)

    def after_due_jobs(self) -> None:
        """Wake for jobs that are due at once: those of idle sessions and campaigns."""
        self.compactor.set()

    def after_job(self, job: Job) -> None:
        """Wake for the notices of an ended job, and for the next job of its campaign."""
        self.relay.set()
        if job.writes is JobKind.REGENERATED:
            self.campaigns.set()

    def after_command(self) -> None:
        """Wake for whatever a request has changed."""
        for event in (self.relay, self.campaigns, self.idle, self.compactor):
            event.set()
