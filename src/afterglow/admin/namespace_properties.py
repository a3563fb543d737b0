"""Properties of namespaces: names and texts that mean something to their users alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.responses import PlainTextResponse

from afterglow.admin import policies, values
from afterglow.admin.access import Access
from afterglow.admin.errors import bad_request
from afterglow.admin.policy_levels import namespace_policies
from afterglow.admin.resource import Resources

if TYPE_CHECKING:
    from starlette.responses import Response

    from afterglow.admin.call import Call

    Json = dict[str, Any]

RESOURCES = Resources("/admin/v2/namespaces/{tenant}/{namespace}")


@RESOURCES.on("GET", "/properties", Access.READ_TENANT)
async def get_all(call: Call) -> dict[str, str]:
    """All properties."""
    return _of(await namespace_policies(call))


@RESOURCES.on("PUT", "/properties", Access.TENANT)
async def put_all(call: Call) -> None:
    """Set properties; others stay."""
    body = await call.body()
    if body is None:
        raise bad_request('the body must be an object of strings, as {"owner":"billing"}')
    given = values.text_map(body, policies.PROPERTIES)
    await _change(call, lambda old: {**old, **given})


@RESOURCES.on("DELETE", "/properties", Access.TENANT)
async def remove_all(call: Call) -> None:
    """Forget all properties."""
    await _change(call, lambda _old: {})


@RESOURCES.on("GET", "/property/{key}", Access.READ_TENANT)
async def get_one(call: Call) -> Response | None:
    """One property, as plain text; no content where it is not set."""
    return _text(_of(await namespace_policies(call)).get(call.segment("key")))


@RESOURCES.on("PUT", "/property/{key}/{value}", Access.TENANT)
async def put_one(call: Call) -> None:
    """Set one property."""
    given = {call.segment("key"): call.segment("value")}
    await _change(call, lambda old: {**old, **given})


@RESOURCES.on("DELETE", "/property/{key}", Access.TENANT)
async def remove_one(call: Call) -> Response | None:
    """Forget one property; the answer is what it was."""
    key = call.segment("key")
    gone: list[str] = []

    def without(old: dict[str, str]) -> dict[str, str]:
        gone[:] = [old[key]] if key in old else []
        return {name: value for name, value in old.items() if name != key}

    await _change(call, without)
    return _text(gone[0] if gone else None)


async def _change(call: Call, edit: Any) -> None:
    await call.update_policies(call.namespace, partial(_changed, edit))


def _changed(edit: Any, stored: Json) -> Json:
    rest = {name: value for name, value in stored.items() if name != policies.PROPERTIES}
    new = edit(_of(stored))
    return {**rest, policies.PROPERTIES: new} if new else rest


def _of(stored: Json) -> dict[str, str]:
    return dict(stored.get(policies.PROPERTIES) or {})


def _text(value: str | None) -> Response | None:
    return None if value is None else PlainTextResponse(value)
