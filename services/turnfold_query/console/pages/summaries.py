"""Pages about the versions of a session's summary."""

import asyncio

from starlette.responses import Response

from turnfold_query.console.differences import compared
from turnfold_query.console.views import PageView, redirect


async def versions(view: PageView) -> Response:
    """Show all versions, newest first."""
    listed = (await view.get_session("/summaries"))["summaries"]
    return view.page(
        "versions.html",
        counts=await view.get_session(),
        tab="versions",
        session_path=view.session_path,
        versions=listed[::-1],
        in_force=next((row["version"] for row in listed if row["in_force"]), None),
        did=view.text("did"),
    )


async def version(view: PageView) -> Response:
    """Show the text and the ledger of a version, and the sources of a line or an entry."""
    number = int(view.part("version"))
    entry, line = view.whole("entry", most=2**31 - 1), view.whole("line", most=2**31 - 1)
    chosen = await view.get_session(f"/summaries/{number}")
    sources = None
    if entry is not None or line is not None:
        where = {"entry": entry} if entry is not None else {"line": line}
        sources = await view.get_session(f"/summaries/{number}/sources", **where)
    return view.page(
        "version.html",
        counts=await view.get_session(),
        tab="versions",
        session_path=view.session_path,
        version=chosen,
        lines=chosen["text"].splitlines(),
        sources=sources,
        entry=entry,
        line=line,
        did=view.text("did"),
    )


async def compare(view: PageView) -> Response:
    """Show two versions side by side."""
    before, after = view.whole("before", most=2**31 - 1), view.whole("after", most=2**31 - 1)
    if not before or not after:
        return redirect(f"{view.session_path}/versions")
    old = await view.get_session(f"/summaries/{before}")
    new = await view.get_session(f"/summaries/{after}")
    return view.page(
        "compare.html",
        counts=await view.get_session(),
        tab="versions",
        session_path=view.session_path,
        before=old,
        after=new,
        # In a thread, because long texts that differ take long to compare.
        sections=await asyncio.to_thread(compared, old, new),
    )
