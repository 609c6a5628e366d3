"""Changes by operators: each has a page that asks for confirmation, and a form."""

from starlette.responses import Response

from turnfold_query.console.api import ApiError
from turnfold_query.console.views import PageView, redirect, whole_number

LISTED_AT_ONCE = 1_000


async def ask_promote(view: PageView) -> Response:
    """Ask whether to put a version in force."""
    view.check_operator()
    number = view.number("version")
    chosen, counts = await view.get_session(f"/summaries/{number}"), await view.get_session()
    now = counts["summary_version"]
    return await view.question(
        title=f"Put version {number} in force",
        sentences=[
            f"Windows of this session will show version {number} instead of version {now}."
            if now
            else f"Windows of this session will show version {number}.",
            (
                f"It covers {chosen['covers']['messages']:,} messages; later ones become pending"
                " until a summary covers them."
            ),
            "The other versions are kept, so this can be undone.",
        ],
        label="Put in force",
        back=f"{view.session_path}/versions/{number}",
        counts=counts,
        hidden={"over": now or ""},
    )


async def promote(view: PageView) -> Response:
    """Put a version in force, if the one that was shown still is."""
    fields = await view.check_form()
    number = view.number("version")
    over = whole_number(fields.get("over", ""))
    await view.visitor.api.post(
        f"/v1{view.session_path}/summaries/{number}/promote",
        {} if over is None else {"over": over},
    )
    return redirect(f"{view.session_path}/versions/{number}", did="promoted")


async def ask_regenerate(view: PageView) -> Response:
    """Ask whether to write a new version."""
    view.check_operator()
    counts = await view.get_session()
    return await view.question(
        title="Regenerate the summary",
        sentences=[
            (
                "A worker writes a new version from the original messages, with the model and the"
                " style of the policy. A model may cost money."
            ),
            "The version in force stays in force until you put the new one in force.",
        ],
        label="Write a new version",
        back=f"{view.session_path}/versions",
        counts=counts,
        hidden={},
    )


async def regenerate(view: PageView) -> Response:
    """Open a job that writes a new version."""
    await view.check_form()
    await view.visitor.api.post(f"/v1{view.session_path}/summaries")
    return redirect(f"{view.session_path}/versions", did="regenerated")


async def ask_restore(view: PageView) -> Response:
    """Ask whether to undo a compaction."""
    view.check_operator()
    counts = await view.get_session()
    await _check_compaction(view)
    return await view.question(
        title="Undo a compaction",
        sentences=[
            (
                f"The messages that compaction {view.part('compaction')} took out of the window"
                " return to it, and the summary that covers them goes out of force."
            ),
            "If a later compaction was committed, undo that one first.",
        ],
        label="Undo",
        back=f"{view.session_path}/compactions",
        counts=counts,
        hidden={},
    )


async def _check_compaction(view: PageView) -> None:
    """Check that the session has the compaction of the path.

    Raises:
        ApiError: it has none with that id.
    """
    before: int | None = None
    while True:
        listed = await view.get_session("/compactions", before=before, limit=LISTED_AT_ONCE)
        if any(row["compaction_id"] == view.part("compaction") for row in listed["compactions"]):
            return
        before = listed["next_before"]
        if before is None:
            raise ApiError(404, {"message": "This session has no compaction with that id."})


async def restore(view: PageView) -> Response:
    """Undo a compaction."""
    await view.check_form()
    await view.visitor.api.post(
        f"/v1{view.session_path}/compactions/{view.part('compaction')}/restore"
    )
    return redirect(f"{view.session_path}/compactions", did="restored")


async def ask_replay(view: PageView) -> Response:
    """Ask whether to publish a dead letter again."""
    view.check_operator()
    number = view.number("letter")
    letter = await view.visitor.api.get(f"/v1/deadletters/{number}")
    return await view.question(
        title=f"Replay dead letter {number}",
        sentences=[
            f"The event is published again on {letter['subject']}, as its agent did.",
            (
                f"It was refused as {letter['reason']}; if that has not changed, it becomes a new"
                " dead letter."
            ),
        ],
        label="Replay",
        back=f"/dead-letters/{number}",
        counts=None,
        hidden={},
    )


async def replay(view: PageView) -> Response:
    """Publish a dead letter again."""
    await view.check_form()
    number = view.number("letter")
    answer = await view.visitor.api.post("/v1/deadletters/replay", {"dead_letter_ids": [number]})
    outcomes = [outcome["outcome"] for outcome in answer["dead_letters"]]
    return redirect(f"/dead-letters/{number}", did=outcomes[0] if outcomes else "unknown")
