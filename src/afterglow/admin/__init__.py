"""The admin API: Pulsar's REST under ``/admin/v2`` and ``/lookup/v2``, with its paths, JSON and status codes.

``app.admin_app`` makes an ASGI application over a broker, ``server.serve_http`` serves it in the broker's own event
loop. One module per resource; everything that waits for a disk or the metadata store runs on a thread, so that no call
holds up dispatch. Nothing here knows Spark or tiers.
"""

from __future__ import annotations

from importlib.util import find_spec

from afterglow.errors import MissingDependency

for _library in ("starlette", "uvicorn", "prometheus_client"):
    if find_spec(_library) is None:
        raise MissingDependency.of_extra(f"the admin API needs {_library}", "serve")
