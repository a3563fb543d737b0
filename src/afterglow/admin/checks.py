"""Checks of the tiers and sweeps, as jobs in the background: begun, looked at, cancelled.

A check reads what all tenants have, and takes threads and Spark of the engine: to begin or to end one needs a
super-user, and so does a sweep, which deletes.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from afterglow.admin import values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request, conflict, not_found, precondition_failed
from afterglow.admin.resource import Resources, json_response
from afterglow.engine.check_jobs import CheckRunning
from afterglow.engine.checking import CheckRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from afterglow.admin.call import Call
    from afterglow.engine.check_jobs import CheckJob, CheckJobs, CheckView
    from afterglow.engine.checking import Told

_FIRST: Final = 20
"""Findings that come with a job."""
_PAGE: Final = 500
"""Findings of one page: some hundred kilobytes of JSON."""
_LONGEST_GRACE_MS: Final = 10 * 366 * 86_400_000


def resources(jobs: CheckJobs | None) -> Resources:
    """The resources that begin, show and cancel checks; without any, each call is refused."""
    found = Resources("/admin/v2/afterglow/checks")

    @found.on("POST", "", Access.SUPER_USER)
    async def begin(call: Call) -> Response:
        """Begin a check."""
        request = read_request(await call.body())
        try:
            job = _present(jobs).begin(request)
        except CheckRunning as error:
            raise conflict(str(error)) from error
        return json_response(encode(job.view()), HTTPStatus.ACCEPTED)

    @found.on("GET", "", Access.READ_SERVER)
    async def list_checks(_call: Call) -> list[dict[str, Any]]:
        """The last few, the newest first."""
        return [encode(job.view()) for job in _present(jobs).jobs()]

    @found.on("GET", "/{id}", Access.READ_SERVER)
    async def get_check(call: Call) -> dict[str, Any]:
        """One of them, with its first findings."""
        job = _job(call, jobs)
        return {**encode(job.view()), "findings": encode_findings(job.findings(0, _FIRST))}

    @found.on("GET", "/{id}/findings", Access.READ_SERVER)
    async def get_findings(call: Call) -> dict[str, Any]:
        """A page of what one found; more may come while it runs."""
        job = _job(call, jobs)
        start = values.whole_number(call.parameter("from") or "0", "from", 0, values.LONG_MAX)
        page = encode_findings(job.findings(start, _PAGE))
        return {"findings": page, "next": start + len(page)}

    @found.on("DELETE", "/{id}", Access.SUPER_USER)
    async def cancel(call: Call) -> None:
        """Have one end at its next step; one that has ended stays as it is."""
        # Spark is asked to end what it does, which may wait for it.
        await call.service.blocking(_job(call, jobs).cancel)

    return found


def read_request(body: object) -> CheckRequest:
    """What a body asks for; an empty one for a check that reads no bytes and deletes nothing.

    Raises:
        AdminError: It is malformed, or contradicts itself.
    """
    given = values.fields({} if body is None else body, "a check", ("deep", "sweep", "delete", "graceMillis"))
    flags = {name: values.boolean(given.get(name, False), name) for name in ("deep", "sweep", "delete")}
    if flags["delete"] and not flags["sweep"]:
        raise bad_request('"delete" says that "sweep" may delete: set both to true, or neither')
    default = CheckRequest()
    return CheckRequest(
        **flags,
        grace_ms=values.integer(given.get("graceMillis", default.grace_ms), "graceMillis", 0, _LONGEST_GRACE_MS),
    )


def encode(view: CheckView) -> dict[str, Any]:
    """A job as JSON."""
    request, progress = view.request, view.progress
    return {
        "id": view.id,
        "deep": request.deep,
        "sweep": request.sweep,
        "delete": request.delete,
        "graceMillis": request.grace_ms,
        "state": view.state,
        "begunMillis": view.begun_ms,
        "endedMillis": view.ended_ms,
        "lookingAt": progress.looking_at,
        "objectsDone": progress.objects_done,
        "objectsDue": progress.objects_due,
        "bytesDone": progress.bytes_done,
        "bytesDue": progress.bytes_due,
        "faults": view.faults,
        "counts": {kind: count for kind, count in sorted(view.counts.items()) if count},
        "deleted": sum(view.deleted.values()),
        "kept": view.kept,
        "error": view.error,
    }


def encode_findings(findings: Sequence[Told]) -> list[dict[str, Any]]:
    """Findings as ``afterglow verify --json`` prints them, each with whether it is a fault that is still there."""
    return [{**told.finding.as_json(), "fault": told.fault} for told in findings]


def _present(jobs: CheckJobs | None) -> CheckJobs:
    if jobs is None:
        raise precondition_failed("this broker makes no checks: it was started without a tier")
    return jobs


def _job(call: Call, jobs: CheckJobs | None) -> CheckJob:
    job_id = call.segment("id")
    job = _present(jobs).job(job_id)
    if job is None:
        raise not_found(f"there is no check {values.shown(job_id)}, or it is one of long ago; GET the list of them")
    return job
