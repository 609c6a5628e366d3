"""One version, from as many model calls as its input needs."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from turnfold.core.summary.carry_over import LIST_SECTIONS, carry_over
from turnfold.core.summary.chunks import chunks
from turnfold.core.summary.extractive.evidence import Evidence, collect_evidence, with_evidence
from turnfold.core.summary.extractive.rendering import render
from turnfold.core.summary.gate import ModelResponse, Reason, check, missing_facts
from turnfold.core.summary.model_answer import fitted, parse_answer
from turnfold.core.summary.prompt import build_prompt, message_data, prompt_data, prompt_version
from turnfold.core.summary.redaction import readable_sources, redact
from turnfold.core.summary.sources import ChunkSummary, Draft, PreviousSummary, Source, SummaryJob
from turnfold.core.text.lines import printable
from turnfold.core.text.values import REQUEST_CHARACTERS
from turnfold.errors import SummarizerError
from turnfold.models.call import ask
from turnfold.models.usage_meter import ModelUsage, UsageMeter

LEAST_PART_TOKENS: Final = 400
"""The smallest prompt worth trying. With less, there is nothing to summarize."""

Keep = Callable[[ChunkSummary], Awaitable[None]]
Count = Callable[[str], int]


async def write_with_model(
    job: SummaryJob, *, litellm: Any, count: Count, keep: Keep, meter: UsageMeter
) -> Draft:
    """Write a version in one call or in several parts, check it, and add files and exact values.

    `keep` receives each part, and the fact that a prompt was too large. With these in `job.parts`,
    another attempt continues without repeating the calls.

    Raises:
        SummarizerError: a call failed, or its answer did not pass the gate. The parts stay valid.
    """
    draft = await _VersionWriter(job, litellm, count, keep, meter).written()
    return replace(draft, **meter.used._asdict())


class _VersionWriter:
    """Writes the parts of one version in order."""

    def __init__(
        self, job: SummaryJob, litellm: Any, count: Count, keep: Keep, meter: UsageMeter
    ) -> None:
        self._job = job
        self._litellm = litellm
        self._count = count
        self._keep = keep
        self._meter = meter
        # A summary must be smaller than all that it covers; a part may be one short message.
        self._input_tokens = 0

    async def written(self) -> Draft:
        """Return the last summary, which covers all parts."""
        job = self._job
        whole = await asyncio.to_thread(readable_sources, job.sources)
        sizes = await asyncio.to_thread(lambda: [self._size(source) for source in whole])
        self._input_tokens = sum(sizes) + self._count(prompt_data(job, boundary="", shown=()))
        room = self._room(sizes)
        pieces = [whole] if sum(sizes) <= room else self._pieces(whole, sizes, room)
        room = min(room, sum(sizes))
        parts_done, offset, draft, previous = 0, 0, None, job.previous
        while pieces or draft is None:
            shown = pieces[0] if pieces else ()
            # `shown` may contain shortened messages. Exact values come from the whole ones.
            part = replace(job, sources=whole[offset : offset + len(shown)], previous=previous)
            draft = await self._part(
                part, shown, (parts_done + 1, parts_done + max(1, len(pieces)))
            )
            if draft is None:
                # The map of models may name a larger window than the provider has.
                room = min(room, sum(sizes[offset : offset + len(shown)])) // 2
                if room < LEAST_PART_TOKENS:
                    raise SummarizerError(
                        Reason.CONTEXT_OVERFLOW,
                        "the smallest part is too large for the model",
                        is_transient=False,
                    )
                pieces = self._pieces(whole[offset:], sizes[offset:], room)
                continue
            previous = PreviousSummary(draft.text, draft.sections, draft.ledger)
            parts_done, offset, pieces = parts_done + 1, offset + len(shown), pieces[1:]
        return draft

    async def _part(
        self, part: SummaryJob, shown: Sequence[Source], place: tuple[int, int]
    ) -> Draft | None:
        """Return the summary after a part, or None if the prompt was too large for the model."""
        digest = _digest(part, shown)
        known = part.parts.get(digest)
        if known is not None:
            return (
                await asyncio.to_thread(self._draft, part, _restored(known, self._meter))
                if known
                else None
            )
        extracted = await asyncio.to_thread(collect_evidence, part, part.sources, count=self._count)
        boundary = secrets.token_hex(8)
        prompt = build_prompt(
            part, boundary=boundary, shown=shown, part=place, values=_values(extracted)
        )
        try:
            answer, used = await ask(
                part, prompt, litellm=self._litellm, count=self._count, meter=self._meter
            )
        except SummarizerError as error:
            if error.reason != Reason.CONTEXT_OVERFLOW:
                raise
            # An empty answer: the next attempt cuts smaller at once, without the call that failed.
            await self._keep(ChunkSummary(digest, "", self._meter.paid()))
            return None
        draft = await asyncio.to_thread(self._draft, part, answer, extracted)
        # A version in one call is committed at once, so keeping its answer would save nothing.
        if place[1] > 1:
            await self._keep(
                ChunkSummary(
                    digest,
                    json.dumps([answer.content, answer.finish_reason, *used]),
                    self._meter.paid(),
                )
            )
        return draft

    def _draft(
        self, part: SummaryJob, answer: ModelResponse, extracted: Evidence | None = None
    ) -> Draft:
        """Return the version of an answer. The gate checks both the answer and the stored text."""
        count = self._count
        if extracted is None:
            extracted = collect_evidence(part, part.sources, count=count)
        input_tokens = self._input_tokens
        # Before parsing, which would read a refusal as prose.
        _refuse(check(answer, input_tokens=input_tokens, output_tokens=0))
        content = answer.content or ""
        whole, record = parse_answer(content, part.style)
        # A model that may answer in JSON alone refuses in its prose.
        has_lists = any(record.get(name) for name in LIST_SECTIONS)
        said = whole if has_lists else str(record.get("context") or whole)
        _refuse(
            check(
                replace(answer, content=said),
                input_tokens=input_tokens,
                output_tokens=count(whole),
            )
        )
        text, sections = parse_answer(content, part.style, max_words=part.text_words)
        if part.style != "narrative" and part.previous is not None:
            sections = carry_over(
                part.previous.sections, sections, max_tokens=part.max_tokens, count=count
            )
            text = render(sections) if set(sections) != {"context"} else text
        # It names entries of the version below. Without one, `carry_over` has not removed it.
        sections.pop("resolved", None)
        text, sections = fitted(
            *_with_known_files(text, sections, extracted), max_tokens=part.max_tokens, count=count
        )
        draft = Draft(text=text, sections=sections, ledger=(), kind="llm", model=part.model)
        draft = replace(with_evidence(draft, extracted), prompt_version=prompt_version(part.task))
        _refuse(
            check(
                replace(answer, content=draft.text),
                input_tokens=input_tokens,
                output_tokens=count(draft.text),
            )
        )
        request = printable(redact(part.newest_request or "")).strip()[:REQUEST_CHARACTERS]
        if missing := missing_facts(
            draft.text, draft.ledger, facts=_values(extracted), request=request
        ):
            raise SummarizerError(
                Reason.FACTS_MISSING, f"{len(missing)} exact values are in neither text nor ledger"
            )
        return draft

    def _room(self, sizes: Sequence[int]) -> int:
        """Return the tokens of messages per call: a share of the window minus the other tokens."""
        job = self._job
        # The boundary must not depend on the last attempt, so that each attempt cuts alike.
        empty = build_prompt(
            replace(job, last_reason=None), boundary="0" * 16, shown=(), part=(1, 2)
        )
        around = sum(self._count(message["content"]) for message in empty)
        free = int(job.window_tokens * job.chunk_share) - around
        if sum(sizes) > free and job.previous is None:
            # From the second part on, the prompt includes the summary so far.
            free -= job.max_tokens
        return max(free, LEAST_PART_TOKENS)

    def _pieces(
        self, sources: Sequence[Source], sizes: Sequence[int], room: int
    ) -> list[tuple[Source, ...]]:
        return chunks(sources, sizes, max_tokens=room, size=self._size)

    def _size(self, source: Source) -> int:
        return self._count(message_data(source)) + 1


def _digest(part: SummaryJob, shown: Sequence[Source]) -> str:
    """Return a key of all that an answer depends on: model, limits and the constant prompt."""
    # Without the parts of a prompt that differ between attempts: correction, boundary and place.
    prompt = build_prompt(replace(part, last_reason=None), boundary="", shown=shown)
    return sha256(
        json.dumps([part.model, part.api_base, part.max_tokens, prompt]).encode()
    ).hexdigest()


def _restored(stored: str, meter: UsageMeter) -> ModelResponse:
    """Return the answer of an earlier attempt. It has passed the gate and passes it again."""
    content, finish_reason, *used = json.loads(stored)
    meter.add(ModelUsage(*used))
    return ModelResponse(content=content, finish_reason=finish_reason)


def _values(extracted: Evidence) -> tuple[str, ...]:
    """Return the exact values within the token limit of the ledger."""
    parted = (entry.partition(" ") for entry in extracted.ledger.entries)
    return tuple(value for kind, _, value in parted if kind != "left_out")


def _refuse(reason: Reason | None) -> None:
    if reason is not None:
        raise SummarizerError(reason, "the answer did not pass the gate")


def _with_known_files(
    text: str, sections: dict[str, Any], extracted: Evidence
) -> tuple[str, dict[str, Any]]:
    """Return the version with the files of the tool calls, whatever the model wrote of them."""
    if "file_changes" not in sections or not extracted.has_known_files:
        return text, sections
    sections = sections | {"file_changes": [change.as_json() for change in extracted.files]}
    return render(sections), sections
