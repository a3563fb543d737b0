"""The admin API: Pulsar's REST under ``/admin/v2`` and ``/lookup/v2``, with its paths, JSON and status codes.

``app.start_admin`` serves it in the broker's own event loop, ``app.ALL_RESOURCES`` lists all routes. ``X_routes`` holds
the handlers of one subject; ``resource``, ``call``, ``access``, ``errors`` and ``values`` are the small framework below
them, ``not_served`` the table of Pulsar's calls that are refused. Everything that waits for a disk or the metadata
store runs on a thread, so that no call holds up dispatch.
"""

from __future__ import annotations

from importlib.util import find_spec

from afterglow.errors import MissingDependency

for _library in ("starlette", "uvicorn", "prometheus_client"):
    if find_spec(_library) is None:
        raise MissingDependency.of_extra(f"the admin API needs {_library}", "serve")
