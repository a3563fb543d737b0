"""The reference pages of the command line and of the admin API, from their definitions."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from typing import TYPE_CHECKING, Any, Final, cast

import typer.main

from afterglow import __version__
from afterglow.admin import console_routes, metrics_routes, not_served
from afterglow.admin.access import Access
from afterglow.admin.app import ALL_RESOURCES
from afterglow.cli.app import app, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from afterglow.admin.resource import Action, Resource, ResourceTable

_CLI_HEAD: Final = """\
# Command line

<!-- Generated from src/afterglow/cli by `make docs`; edit there. -->

Every command of `afterglow` with its arguments and options; `--help` prints the same. Exit codes: 0 success, 1 failure
or damage found, 2 wrong usage. An error is one line on standard error.
"""

_REST_HEAD: Final = """\
# REST API

<!-- Generated from the routes in src/afterglow/admin by `make docs`; edit there. -->

Every call that a server answers, on the port `webServicePort`. Pulsar's calls have Pulsar's paths and JSON, so that
`pulsar-admin` and other tools work; the body of a call is that of Apache Pulsar's documentation. An error is
`{"reason": "…"}` with its status: 401 without valid credentials, 403 without the [right](security.md#authorisation),
404 for objects that do not exist, 409 for conflicts, 412 for values that are not valid. Calls of Pulsar that are not
served answer 405 with the reason.

[openapi.json](openapi.json) describes the same calls for generators of clients.
"""

_RIGHTS: Final = {
    Access.ANYONE: "nothing",
    Access.KNOWN: "any authenticated role",
    Access.LOOKUP: "`produce` or `consume` on the topic",
    Access.PEEK: "`consume` on the topic",
    Access.LIST_TOPICS: "`produce` or `consume` on the namespace",
    Access.READ_TENANT: "an admin of the tenant",
    Access.READ_SERVER: "a superuser",
    Access.CHANGE_SUBSCRIPTION: "`consume` on the topic, and the subscription",
    Access.CHANGE_SCHEMA: "`produce` on the topic",
    Access.TENANT: "an admin of the tenant",
    Access.SUPER_USER: "a superuser",
}
"""What the page says of each right, as docs/security.md does."""
_READERS: Final = {"flag": "boolean", "integer_parameter": "integer", "parameter": "string"}
"""Methods of a call that read a parameter of the query, with its type."""


# --- the command line ---


def cli_page() -> str:
    """Every command with its arguments and options."""
    register()
    return "\n".join([_CLI_HEAD, *_command_parts(typer.main.get_command(app), "afterglow")])


def _command_parts(command: Any, name: str) -> Iterator[str]:
    shown = [parameter for parameter in command.params if not parameter.hidden and parameter.name != "help"]
    arguments = [parameter for parameter in shown if not parameter.opts[0].startswith("-")]
    below = getattr(command, "commands", None)
    usage = [name, *map(_argument, arguments), "[OPTIONS]" if len(shown) > len(arguments) else "", "COMMAND"]
    yield f"## {name}\n\n```\n{' '.join(filter(None, usage if below else usage[:-1]))}\n```\n"
    text, *examples = re.split(r"\n\s*Examples?: ", inspect.cleandoc(command.help or ""))
    yield _escaped(text.strip()) + "\n"
    if examples:
        yield "```sh\n" + "\n".join(" ".join(example.split()) for example in examples) + "\n```\n"
    if shown:
        yield "| | |\n|---|---|"
        yield "\n".join(map(_parameter_row, shown)) + "\n"
    for each, command_below in sorted((below or {}).items()):
        if not command_below.hidden:
            yield from _command_parts(command_below, f"{name} {each}")


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).upper()
    many = "..." if parameter.nargs == -1 else ""
    return f"{name}{many}" if parameter.required else f"[{name}]{many}"


def _parameter_row(parameter: Any) -> str:
    if parameter.opts[0].startswith("-"):
        spelled = "`, `".join([*parameter.opts, *parameter.secondary_opts])
        value = "" if parameter.is_flag else f" {(parameter.metavar or 'VALUE').upper()}"
        name = f"`{spelled}{value}`"
    else:
        name = f"`{_argument(parameter)}`"
    notes = [_escaped(" ".join((parameter.help or "").split()))]
    default = parameter.default
    if default not in (None, False, (), []) and not callable(default) and parameter.show_default is True:
        notes.append(f"Default: `{getattr(default, 'value', default)}`.")
    if isinstance(parameter.envvar, str):
        notes.append(f"Environment: `{parameter.envvar}`.")
    return f"| {name} | {' '.join(filter(None, notes))} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


# --- the admin API ---


def rest_page() -> str:
    """Every call of the admin API, by its path."""
    groups: dict[str, list[str]] = {}
    for path, calls in openapi()["paths"].items():
        rows = groups.setdefault(_group(path), [])
        for method, call in calls.items():
            names = [f"`{each['name']}`" for each in call["parameters"] if each["in"] == "query"]
            query = f" Query: {', '.join(names)}." if names else ""
            effect = f"{call['summary'].rstrip('.')}.{query}"
            rows.append(f"| `{method.upper()} {path}` | {_escaped(effect)} | {call['x-requires']} |")
    tables = (
        f"## {group}\n\n| call | effect | requires |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        for group, rows in groups.items()
    )
    return "\n".join([_REST_HEAD, *tables])


def openapi_json() -> str:
    """The description of the admin API, as a file."""
    return json.dumps(openapi(), indent=1, ensure_ascii=False) + "\n"


def openapi() -> dict[str, Any]:
    """The admin API in OpenAPI 3.1: served calls with path and query parameters."""
    paths: dict[str, dict[str, Any]] = {}
    for resource in _resources():
        calls = paths.setdefault(resource.path, {})
        for method, action in resource.actions.items():
            calls.setdefault(method.lower(), _operation(resource.path, action))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Afterglow admin API", "version": __version__},
        "paths": dict(sorted(paths.items(), key=lambda item: (_group(item[0]), item[0]))),
        "components": {
            "schemas": {"Error": {"type": "object", "properties": {"reason": {"type": "string"}}}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{"token": []}, {}],
    }


def _resources() -> Iterator[Resource[Any]]:
    """All resources of a broker, without Pulsar's calls that it refuses."""
    # Their handlers are not called: neither needs a server.
    tables: tuple[ResourceTable[Any], ...] = (
        console_routes.overview_resources(cast("Any", None), cast("Any", None), 0),
        *console_routes.history_resources(cast("Any", None)),
        metrics_routes.resources(cast("Any", None), Access.ANYONE),
        *ALL_RESOURCES,
    )
    for table in tables:
        if table is not not_served.RESOURCES:
            yield from table


def _operation(path: str, action: Action[Any]) -> dict[str, Any]:
    documented = inspect.cleandoc(action.handler.__doc__ or "").partition("\n")[0].replace("``", "`")
    # One handler serves all policies of a kind: the path has the name.
    verb = {"put": "set", "post": "set", "remove": "remove"}.get(action.handler.__name__.rpartition("_")[2], "get")
    named = f"{verb.capitalize()} `{path.rpartition('/')[2]}`"
    queries, has_body = _read_by(action)
    inside = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)", path)
    ]
    asked = [{"name": name, "in": "query", "schema": {"type": kind}} for name, kind in queries.items()]
    body: dict[str, Any] = {"requestBody": {"content": {"application/json": {"schema": {}}}}} if has_body else {}
    return {
        "summary": documented or named,
        "x-requires": _RIGHTS[action.access],
        "parameters": inside + asked,
        **body,
        "responses": {
            "2XX": {"description": "Done"},
            "default": {
                "description": "Refused or failed",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }


def _read_by(action: Action[Any]) -> tuple[dict[str, str], bool]:
    """The query parameters that a handler reads itself, with their types, and whether it reads a body."""
    queries: dict[str, str] = {}
    has_body = False
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(action.handler)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            has_body = has_body or node.func.attr == "body"
            first = node.args[0] if node.args else None
            if node.func.attr in _READERS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                queries[first.value] = _READERS[node.func.attr]
    return queries, has_body


def _group(path: str) -> str:
    """The heading below which a path is listed: what precedes its first parameter, or the whole of a short one."""
    found = re.match(r"/admin/v2/[\w-]+|/lookup/v2/[\w-]+|/", path)
    assert found
    return found[0]
