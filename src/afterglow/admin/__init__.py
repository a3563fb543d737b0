"""The admin API: Pulsar's REST under ``/admin/v2`` and ``/lookup/v2``, with its paths, JSON and status codes.

Entry points: ``app.start_admin`` serves the API in the broker's event loop, ``app.ALL_RESOURCES`` lists all routes. A
module ``X_routes`` has the handlers of one subject; ``resource``, ``call``, ``access``, ``errors`` and ``values`` are
the framework below them; ``not_served`` is the table of Pulsar's calls that are refused. Work that waits for a disk or
the metadata store runs on a thread, so that no call delays dispatch.
"""

from __future__ import annotations

from importlib.util import find_spec

from afterglow.errors import MissingDependency

for _library in ("starlette", "uvicorn", "prometheus_client"):
    if find_spec(_library) is None:
        raise MissingDependency.of_extra(f"the admin API needs {_library}", "serve")
