"""Verification of the tiers: one call that streams newline-delimited JSON until the verification ends.

A line is ``{"progress": …}``, ``{"finding": …}`` or, as the last one, ``{"result": …}``. A client that disconnects
cancels the verification and its Spark job. The call needs a superuser: it reads objects of all tenants, occupies a
thread and Spark of the server, and deletes objects if a sweep is requested.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import StreamingResponse

from afterglow.admin import values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, conflict, precondition_failed
from afterglow.admin.resource import SharedResources, encode
from afterglow.pipeline.tier_verifier import VerifyRequest
from afterglow.pipeline.verify_runs import VerifyRunning

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from afterglow.admin.call import Call
    from afterglow.pipeline.tier_verifier import ReportedFinding, VerifyControl
    from afterglow.pipeline.verify_runs import VerifyResult, VerifyRun

RESOURCES = SharedResources("/admin/v2/afterglow/verify")

_PROGRESS_S: Final = 1.0
"""Interval of progress lines. Clients treat a longer silence as a lost connection."""
_LONGEST_GRACE_MS: Final = 10 * 366 * 86_400_000


@RESOURCES.on("POST", "", Access.SUPER_USER)
async def verify(call: Call) -> StreamingResponse:
    """Verify the tiers; the response streams progress, findings and the result."""
    request = _read_request(await call.body())
    runs = call.server.verify_runs
    if runs is None:
        raise precondition_failed("this server has no tier to verify; start it with a tier")
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it the client's connection
            loop.call_soon_threadsafe(changed.set)

    try:
        return _VerifyResponse(runs.start(request, notify), changed)
    except VerifyRunning as error:
        raise conflict(str(error)) from error


class _VerifyResponse(StreamingResponse):
    """Streams a run; a response that ends early cancels the run, also before the first line is sent."""

    def __init__(self, run: VerifyRun, changed: asyncio.Event) -> None:
        super().__init__(_lines(run, changed), media_type="application/x-ndjson")
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._run.result is None:
                self._run.control.cancel()


async def _lines(run: VerifyRun, changed: asyncio.Event) -> AsyncIterator[bytes]:
    clock = asyncio.get_running_loop().time
    progress_at = clock()
    while True:
        result = run.result  # before the findings are taken: once it is set, no more are added
        findings = run.take()
        lines: list[dict[str, Any]] = [{"finding": _finding(found)} for found in findings]
        if result is not None or clock() >= progress_at:
            progress_at = clock() + _PROGRESS_S
            lines.append({"progress": _progress(run.control)})
        if result is not None:
            lines.append({"result": _result(result)})
        yield b"".join(encode(line) + b"\n" for line in lines)
        if result is not None:
            return
        if not findings:
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _PROGRESS_S)
            changed.clear()


def _read_request(body: object) -> VerifyRequest:
    given = values.fields({} if body is None else body, "a verification", ("deep", "sweep", "delete", "graceMillis"))
    flags = {name: values.boolean(given.get(name, False), name) for name in ("deep", "sweep", "delete")}
    if flags["delete"] and not flags["sweep"]:
        raise bad_request('"delete" needs "sweep": set both to true, or neither')
    default = VerifyRequest()
    return VerifyRequest(
        **flags,
        grace_ms=values.integer(given.get("graceMillis", default.grace_ms), "graceMillis", 0, _LONGEST_GRACE_MS),
    )


def _progress(control: VerifyControl) -> dict[str, Any]:
    return {
        "current": control.current,
        "objectsDone": control.objects_done,
        "objectsDue": control.objects_due,
        "bytesDone": control.bytes_done,
        "bytesDue": control.bytes_due,
    }


def _finding(found: ReportedFinding) -> dict[str, Any]:
    """A finding as ``afterglow verify --json`` prints it, and whether it is a fault that remains."""
    return {**found.finding.as_json(), "fault": found.fault}


def _result(result: VerifyResult) -> dict[str, Any]:
    return {
        "state": result.state,
        "error": result.error,
        "startedMillis": result.started_ms,
        "endedMillis": result.ended_ms,
        "faults": result.faults,
        "counts": {kind: count for kind, count in sorted(result.counts.items()) if count},
        "deleted": sum(result.deleted.values()),
    }
