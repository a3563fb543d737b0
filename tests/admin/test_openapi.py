"""docs/openapi.json has exactly the calls that a broker serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.routing import Route

from afterglow.admin import not_served
from afterglow.admin.app import admin_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin

DESCRIBED = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text("utf-8"))


def test_every_route_is_described_and_nothing_else(start: Callable[..., Admin]) -> None:
    refused = {(resource.path, method) for resource in not_served.RESOURCES for method in resource.actions}
    admin = start()
    routes = [route for route in admin_app(admin.server, admin.process).routes if isinstance(route, Route)]
    served = {(route.path, method) for route in routes for method in route.methods or () if method != "HEAD"}
    described = {(path, method.upper()) for path, calls in DESCRIBED["paths"].items() for method in calls}
    assert described == served - refused
    assert len(described) > 100


def test_every_parameter_of_a_path_is_declared_once() -> None:
    for path, calls in DESCRIBED["paths"].items():
        for call in calls.values():
            declared = [each["name"] for each in call["parameters"]]
            assert len(declared) == len(set(declared)), path
            assert all(f"{{{each['name']}}}" in path for each in call["parameters"] if each["in"] == "path"), path
            assert call["summary"], path
