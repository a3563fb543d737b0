"""An admin API that says again what that of an Apache Pulsar said when golden cases were made."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.objects import get_uuid
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.golden import GoldenCase


@dataclass(slots=True)
class RecordedAdmin:
    """What is answered, by path below ``/admin/v2/``; all else is 404."""

    url: str
    answers: dict[str, Any] = field(default_factory=dict)
    """JSON values."""
    statuses: dict[str, int] = field(default_factory=dict)
    """Other statuses than 200 and 404."""
    asked: list[str] = field(default_factory=list)
    """Every path that was asked for."""
    deleted: list[str] = field(default_factory=list)
    """Every path with which a DELETE succeeded. That of a subscription leaves the list of these."""

    def add(self, case: GoldenCase, policies: dict[str, Any] | None = None) -> str:
        """Answer for the topic of a case; returns its name.

        ``internal-info`` was not recorded: it is what Pulsar makes of the recorded metadata, field by field.
        """
        topic = TopicName.parse(case.about["topic"])
        path = f"persistent/{topic.namespace}/{topic.local_name}"
        self.answers |= {
            f"{path}/partitions": {"partitions": 0},
            f"{path}/internalStats": json.loads((case.path / "internalStats-after.json").read_text()),
            f"{path}/internal-info": {"version": 1, "ledgers": _ledgers(case), "cursors": {}},
            f"schemas/{topic.namespace}/{topic.local_name}/schemas": json.loads(
                (case.path / "schemas.json").read_text()
            ),
        }
        if policies is not None:
            self.answers[f"{path}/offloadPolicies"] = policies
        return str(topic)


@contextmanager
def recorded_admin(cases: Iterable[GoldenCase] = ()) -> Iterator[RecordedAdmin]:
    """Serve what was recorded of some cases, for the time of a ``with``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path.removeprefix("/admin/v2/")
            admin.asked.append(path)
            found = path in admin.answers
            content = json.dumps(
                admin.answers[path] if found else {"reason": f"nothing is recorded of {path}"}
            ).encode()
            self.send_response(admin.statuses.get(path, 200 if found else 404))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_DELETE(self) -> None:
            path = urlsplit(self.path).path.removeprefix("/admin/v2/")
            status = admin.statuses.get(path, 204)
            if status == 204:
                admin.deleted.append(path)
                parent, _, name = path.partition("/subscription/")
                admin.answers[f"{parent}/subscriptions"].remove(name)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    admin = RecordedAdmin(f"http://127.0.0.1:{server.server_port}")
    for case in cases:
        admin.add(case)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield admin
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _ledgers(case: GoldenCase) -> list[dict[str, Any]]:
    found = []
    for row in parse_managed_ledger((case.path / "mlinfo.bin").read_bytes()).ledgerInfo:
        begun = row.HasField("offloadContext")
        found.append(
            {
                "ledgerId": row.ledgerId,
                "entries": row.entries if row.HasField("entries") else None,
                "size": row.size if row.HasField("size") else None,
                "timestamp": row.timestamp if row.HasField("timestamp") else None,
                "isOffloaded": begun,  # also of an offload that never ended: so Pulsar has it
                "offloadedContextUuid": str(get_uuid(row.offloadContext)) if begun else None,
            }
        )
    return found
