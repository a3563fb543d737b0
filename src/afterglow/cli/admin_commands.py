"""Commands of ``pulsar-admin`` for clusters, brokers, tenants, namespaces, topics and schemas.

A command that makes one call and prints the answer is a row of :data:`_TABLE`; the others are functions below it.
"""

from __future__ import annotations

import inspect
import json
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from afterglow.cli import parameters
from afterglow.cli.command import Group, Session, namespace_path, topic_path, with_parameters
from afterglow.cli.parameters import Force, NamespaceArgument, PriorityArgument, Subscription, TopicArgument
from afterglow.errors import AfterglowError, ConfigError
from afterglow.metadata.names import TopicName, encode_name

CLUSTERS = Group("clusters", "Clusters and their addresses, by the names of pulsar-admin.")
BROKERS = Group("brokers", "Brokers, by the names of pulsar-admin.")
NAMESPACES = Group("namespaces", "Namespaces and their policies, by the names of pulsar-admin.", read_priority=True)
SCHEMAS = Group("schemas", "Schemas of topics, by the names of pulsar-admin.")
TENANTS = Group("tenants", "Tenants and who administers them, by the names of pulsar-admin.")
TOPICS = Group("topics", "Topics, by the names of pulsar-admin and some more.", read_priority=True)

Given = dict[str, Any]
"""Arguments and options of a command by name."""
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]

_PARAMETERS: Final[dict[str, Any]] = {
    "cluster": Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster.")],
    "tenant": Tenant,
    "namespace": NamespaceArgument,
    "topic": TopicArgument,
    "subscription": Subscription,
    "count": parameters.Count,
    "partitions": Annotated[int, typer.Option("--partitions", "-p", min=1, help="How many partitions.")],
    "priority": PriorityArgument,
    "force": Force,
    "applied": Annotated[bool, typer.Option("--applied", "-ap", help="All that holds, also from wider levels.")],
    "ttl": Annotated[
        int,
        typer.Option(
            *("--messageTTL", "-ttl"),
            metavar="TIME",
            parser=parameters.read_seconds,
            help="Age past which a message counts as acknowledged, such as 2d; 0: never.",
        ),
    ],
    "lag": Annotated[
        int,
        typer.Option(
            *("--lag", "-l"),
            metavar="TIME",
            parser=parameters.read_milliseconds,
            help="Time from offload to the end of the hot copy, such as 4h; without a unit seconds.",
        ),
    ],
}
"""Arguments and options that rows of the table name."""


# Forms of answers: each makes the call of a row and prints what came back.


@dataclass(frozen=True, slots=True)
class _Call:
    """A call with all names filled in."""

    session: Session
    method: str
    path: str
    body: object
    query: dict[str, str]
    given: Given


Answer = Callable[[_Call], None]


def _done(sentence: str | Callable[[Given], str]) -> Answer:
    """Make a change and say so."""

    def answer(call: _Call) -> None:
        call.session.client.call(call.method, call.path, call.body, query=call.query)
        call.session.out.say(sentence.format(**call.given) if isinstance(sentence, str) else sentence(call.given))

    return answer


def _names(label: str) -> Answer:
    """Print a list of names; in JSON each is under a label."""
    return lambda call: call.session.out.lines(label, call.session.client.names(call.path))


def _record(absent: str) -> Answer:
    """Print an object, or that there is none."""
    return lambda call: call.session.out.record(call.session.client.get(call.path, **call.query), absent)


def _rows(absent: str) -> Answer:
    """Print a list of objects, or that there is none."""
    return lambda call: call.session.out.rows(call.session.client.rows(call.path), absent)


def _value(label: str, absent: str, words: Callable[[Any], str] = str) -> Answer:
    """Print one value, or that it is not set; in JSON it is under a label."""

    def answer(call: _Call) -> None:
        found = call.session.client.get(call.path)
        call.session.out.say(absent if found is None else words(found), {label: found})

    return answer


def _text(label: str, expected: str | None = None) -> Answer:
    """Print an answer that is not JSON; fail where another one is expected."""

    def answer(call: _Call) -> None:
        said = call.session.client.content(call.path).content.decode("utf-8", "replace").strip()
        if expected not in {None, said}:
            raise AfterglowError(f"the broker says {said!r} of its {label}, not {expected!r}")
        call.session.out.say(said, {label: said})

    return answer


@dataclass(frozen=True, slots=True)
class _Row:
    """A command that is one call."""

    name: str
    """Group and command."""
    example: str
    """What stands behind the name in the example."""
    help: str
    call: str
    """Method and path below ``/admin/v2``; names in braces are parameters."""
    answer: Answer
    body: str | None = None
    """The parameter that is sent as JSON."""
    options: tuple[str, ...] = ()
    """Flags that go into the query."""
    defaults: Given = field(default_factory=dict)
    working: str | None = None
    """What is shown while the call lasts."""


def _expiry(ttl_s: int) -> str:
    return f"expire after {ttl_s} s" if ttl_s else "stay"


_NAMESPACE: Final = "namespaces/{namespace}"
_SUBSCRIPTION: Final = "{topic}/subscription/{subscription}"
_DEFAULT: Final = {"namespace": parameters.DEFAULT}
_read_priority: Final = _value(
    "dataReadPriority", "not set here: a wider level's holds", lambda found: str(found).lower().replace("_", "-")
)
_offload_policies: Final = _record("not set here: what a wider level sets holds; --applied shows it")
_deletion_lag: Final = _value(
    "offloadDeletionLagMs",
    "Unset for namespace. Defaulting to broker setting.",
    lambda lag_ms: f"{lag_ms / 60_000:g} minute(s)",
)

# fmt: off
_TABLE: Final = (
    _Row("clusters list", "", "List the clusters.", "GET clusters", _names("cluster")),
    _Row("clusters get", "standalone", "Show where a cluster answers.",
         "GET clusters/{cluster}", _record("nothing is known of it")),
    _Row("brokers list", "", "List the brokers that run.", "GET brokers", _names("broker")),
    _Row("brokers healthcheck", "", "Ask a broker whether it is well; exit 1 if not.",
         "GET brokers/health", _text("health", "ok")),
    _Row("brokers version", "", "Show the release of Pulsar whose protocol and API are served.",
         "GET brokers/version", _text("version")),
    _Row("brokers get-runtime-config", "--json", "Show every setting that the broker runs with, secrets masked.",
         "GET brokers/configuration/runtime", _record("no settings")),
    _Row("tenants list", "", "List all tenants.", "GET tenants", _names("tenant")),
    _Row("tenants get", "public", "Show a tenant's administrators and clusters.",
         "GET tenants/{tenant}", _record("none")),
    _Row("tenants delete", "acme", "Delete a tenant that has no namespaces.",
         "DELETE tenants/{tenant}", _done("deleted {tenant}")),
    _Row("namespaces create", "public/orders", "Create a namespace in a tenant that exists.",
         f"PUT {_NAMESPACE}", _done("created {namespace}")),
    _Row("namespaces list", "public", "List the namespaces of a tenant.",
         "GET namespaces/{tenant}", _names("namespace"), defaults={"tenant": "public"}),
    _Row("namespaces delete", "public/orders", "Delete a namespace that has no topics.",
         f"DELETE {_NAMESPACE}", _done("deleted {namespace}")),
    _Row("namespaces policies", "public/default --json", "Show all policies of a namespace.",
         f"GET {_NAMESPACE}", _record("none")),
    _Row("namespaces topics", "public/default", "List the topics of a namespace, each partition by itself.",
         f"GET {_NAMESPACE}/topics", _names("topic")),
    _Row("namespaces unload", "public/default",
         "Close all topics of a namespace; clients come back and open theirs again.",
         f"PUT {_NAMESPACE}/unload", _done("unloaded {namespace}"), working="closing the topics of {namespace}"),
    _Row("namespaces get-retention", "public/default", "Show how long acknowledged messages are kept.",
         f"GET {_NAMESPACE}/retention", _record("not set: the broker's defaultRetention… settings hold")),
    _Row("namespaces remove-retention", "public/default",
         "Let the broker's retention hold again; where that is 0, acknowledged messages are deleted.",
         f"DELETE {_NAMESPACE}/retention",
         _done("removed the retention of {namespace}: the broker's defaultRetentionTimeInMinutes and "
               "defaultRetentionSizeInMB hold; 0 keeps no acknowledged messages")),
    _Row("namespaces set-message-ttl", "public/default -ttl 2d",
         "Acknowledge messages by themselves once they are so old.", f"POST {_NAMESPACE}/messageTTL",
         _done(lambda on: f"messages in {on['namespace']} {_expiry(on['ttl'])}"), body="ttl"),
    _Row("namespaces get-message-ttl", "public/default",
         "Show the age past which messages count as acknowledged, in seconds.",
         f"GET {_NAMESPACE}/messageTTL", _value("messageTTL", "not set: messages stay until they are acknowledged")),
    _Row("namespaces remove-message-ttl", "public/default",
         "Let messages stay until they are acknowledged, however old.",
         f"DELETE {_NAMESPACE}/messageTTL", _done("removed the time to live of {namespace}")),
    _Row("namespaces get-offload-policies", "public/default --json",
         "Show the offload policies that are set for a namespace.",
         f"GET {_NAMESPACE}/offloadPolicies", _offload_policies, options=("applied",)),
    _Row("namespaces remove-offload-policies", "public/default",
         "Let the broker's offload settings hold again, also for threshold, lag and read priority.",
         # Pulsar has no DELETE where the policies are.
         f"DELETE {_NAMESPACE}/removeOffloadPolicies", _done("removed the offload policies of {namespace}")),
    _Row("namespaces set-offload-deletion-lag", "public/default --lag 4h",
         "Say how long the hot copy of a ledger stays after its offload.", f"PUT {_NAMESPACE}/offloadDeletionLagMs",
         _done(lambda on: f"hot copies in {on['namespace']} stay for {on['lag'] / 1000:g} s after their offload"),
         body="lag"),
    _Row("namespaces get-offload-deletion-lag", "public/default",
         "Show how long the hot copy of a ledger stays after its offload.",
         f"GET {_NAMESPACE}/offloadDeletionLagMs", _deletion_lag),
    _Row("namespaces clear-offload-deletion-lag", "public/default", "Let the broker's deletion lag hold again.",
         f"DELETE {_NAMESPACE}/offloadDeletionLagMs", _done("cleared the deletion lag of {namespace}")),
    _Row("namespaces set-data-read-priority", "public/default bookkeeper-first",
         "Say which copy serves a read while both exist.",
         f"PUT {_NAMESPACE}/dataReadPriority", _done("set the data read priority of {namespace}"), body="priority"),
    _Row("namespaces get-data-read-priority", "public/default", "Show which copy serves a read while both exist.",
         f"GET {_NAMESPACE}/dataReadPriority", _read_priority),
    _Row("namespaces remove-data-read-priority", "public/default", "Let the broker's read priority hold again.",
         f"DELETE {_NAMESPACE}/dataReadPriority", _done("removed the data read priority of {namespace}")),
    _Row("topics list", "public/default", "List the topics of a namespace, each partition by itself.",
         f"GET {_NAMESPACE}/topics", _names("topic"), defaults=_DEFAULT),
    _Row("topics unload", "orders", "Close a topic; clients come back and open it again.",
         "PUT {topic}/unload", _done("unloaded {topic}"), working="closing {topic}"),
    _Row("topics truncate", "orders", "Acknowledge all messages for all subscriptions and let go of them.",
         "DELETE {topic}/truncate", _done("truncated {topic}"), working="truncating {topic}"),
    _Row("topics trim-topic", "orders",
         "Let go of closed ledgers past their retention now, instead of at the next round.",
         "POST {topic}/trim", _done("trimmed {topic}"), working="trimming {topic}"),
    _Row("topics create-partitioned-topic", "orders --partitions 4",
         "Create a topic with partitions; `create --partitions` does the same.",
         "PUT {topic}/partitions", _done("created {topic} with {partitions} partitions"),
         body="partitions", working="creating {partitions} partitions"),
    _Row("topics update-partitioned-topic", "orders --partitions 8", "Give a partitioned topic more partitions. "
         "Keys are spread anew: a key's later messages may go to another one.",
         "POST {topic}/partitions", _done("{topic} has {partitions} partitions"),
         body="partitions", working="creating partitions"),
    _Row("topics list-partitioned-topics", "public/default", "List the partitioned topics of a namespace.",
         "GET persistent/{namespace}/partitioned", _names("topic"), defaults=_DEFAULT),
    _Row("topics delete-partitioned-topic", "orders --force",
         "Delete a partitioned topic with all its partitions; `delete` does the same.",
         "DELETE {topic}/partitions", _done("deleted {topic}"), options=("force",), working="deleting {topic}"),
    _Row("topics subscriptions", "orders", "List the subscriptions of a topic.",
         "GET {topic}/subscriptions", _names("subscription")),
    _Row("topics unsubscribe", "orders -s billing",
         "Delete a subscription; what no other one keeps is left to retention.",
         f"DELETE {_SUBSCRIPTION}", _done("deleted the subscription {subscription} of {topic}"), options=("force",)),
    _Row("topics skip", "orders -s billing -n 10",
         "Acknowledge the next entries of a subscription; a batch is one entry.",
         f"POST {_SUBSCRIPTION}/skip/{{count}}", _done("skipped {count} entries for {subscription} of {topic}")),
    _Row("topics clear-backlog", "orders -s billing", "Acknowledge everything for a subscription.",
         f"POST {_SUBSCRIPTION}/skip_all", _done("cleared the backlog of {subscription} of {topic}")),
    _Row("topics get-offload-policies", "orders --applied", "Show the offload policies that are set for a topic.",
         "GET {topic}/offloadPolicies", _offload_policies, options=("applied",)),
    _Row("topics remove-offload-policies", "orders", "Let the namespace's offload policies hold again.",
         "DELETE {topic}/offloadPolicies", _done("removed the offload policies of {topic}")),
    _Row("topics set-data-read-priority", "orders bookkeeper-first",
         "Say which copy serves a read while both exist; open readers obey at once.",
         "PUT {topic}/dataReadPriority", _done("set the data read priority of {topic}"), body="priority"),
    _Row("topics get-data-read-priority", "orders", "Show which copy serves a read while both exist.",
         "GET {topic}/dataReadPriority", _read_priority),
    _Row("topics remove-data-read-priority", "orders", "Let the namespace's read priority hold again.",
         "DELETE {topic}/dataReadPriority", _done("removed the data read priority of {topic}")),
    _Row("topics policy", "orders --json", "Show every setting that holds for a topic, with the level that set it.",
         "GET {topic}/policy", _rows("no settings")),
)
# fmt: on


def _register(row: _Row) -> None:
    group, command = row.name.split()
    method, template = row.call.split()
    in_path = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    names = [*in_path, *([row.body] if row.body else ()), *row.options]
    defaults = dict.fromkeys(row.options, False) | row.defaults

    def run(session: Session, **given: Any) -> None:
        path = template.format(**{name: _encoded(given[name]) for name in in_path})
        query = {name: "true" for name in row.options if given[name]}
        call = _Call(session, method, path, given[row.body] if row.body else None, query, given)
        if row.working is None:
            row.answer(call)
        else:
            with session.out.working(row.working.format(**given)):
                row.answer(call)

    run.__doc__ = f"{row.help}\n\nExample: afterglow {row.name} {row.example}".rstrip()
    kind = inspect.Parameter.KEYWORD_ONLY
    taken = [
        inspect.Parameter(name, kind, annotation=_PARAMETERS[name], default=defaults.get(name, inspect.Parameter.empty))
        for name in names
    ]
    groups = {"brokers": BROKERS, "clusters": CLUSTERS, "namespaces": NAMESPACES, "tenants": TENANTS, "topics": TOPICS}
    groups[group].command(command)(
        with_parameters(run, [inspect.Parameter("session", kind, annotation=Session), *taken])
    )


def _encoded(value: object) -> str:
    """A parameter as it stands in a path."""
    if isinstance(value, TopicName):
        return topic_path(value)
    return encode_name(value) if isinstance(value, str) else str(value)


for _row in _TABLE:
    _register(_row)


# Commands that need more than one call, or arguments that go together.

AdminRoles = Annotated[
    str | None, typer.Option("--admin-roles", "-r", metavar="ROLES", help="Who administers it, with commas between.")
]
Clusters = Annotated[
    str | None,
    typer.Option("--allowed-clusters", "-c", metavar="CLUSTERS", help="With commas between; else all that there are."),
]


@TENANTS.command("create")
def create_tenant(session: Session, tenant: Tenant, *, roles: AdminRoles = None, clusters: Clusters = None) -> None:
    """Create a tenant.

    Example: afterglow tenants create acme --admin-roles alice,bob
    """
    allowed = session.client.names("clusters") if clusters is None else _split(clusters)
    value = {"adminRoles": _split(roles or ""), "allowedClusters": allowed}
    session.change("PUT", f"tenants/{encode_name(tenant)}", value, f"created {tenant}")


@TENANTS.command("update")
def update_tenant(session: Session, tenant: Tenant, *, roles: AdminRoles = None, clusters: Clusters = None) -> None:
    """Change a tenant's administrators or clusters; only what is given changes.

    Example: afterglow tenants update acme --admin-roles alice
    """
    given = {"adminRoles": roles, "allowedClusters": clusters}
    changed: dict[str, Any] = {name: _split(value) for name, value in given.items() if value is not None}
    if not changed:
        raise typer.BadParameter("give --admin-roles ROLES, --allowed-clusters CLUSTERS, or both")
    path = f"tenants/{encode_name(tenant)}"
    session.change("POST", path, {**session.client.fields(path), **changed}, f"changed {tenant}")


def _split(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


@NAMESPACES.command("set-retention")
def set_retention(
    session: Session,
    namespace: NamespaceArgument,
    *,
    time: Annotated[
        int,
        typer.Option(
            *("--time", "-t"),
            metavar="TIME",
            parser=parameters.read_minutes_or_none,
            help="How long acknowledged messages are kept, such as 3h; -1: for ever.",
        ),
    ],
    size: Annotated[
        int,
        typer.Option(
            *("--size", "-s"),
            metavar="SIZE",
            parser=parameters.read_mebibytes_or_none,
            help="How much of them is kept for each topic, such as 10G; -1: all.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="With --time 0 --size 0: delete.")] = False,
) -> None:
    """Keep messages after every subscription has acknowledged them; --time 0 --size 0 deletes them instead.

    What is deleted is gone from the hot log and from the tier, ledger by ledger, and without a way back: therefore
    zeros are refused without --yes. A topic without subscriptions has no unacknowledged messages.

    Example: afterglow namespaces set-retention public/default --time 3d --size -1
    """
    if time == size == 0:
        if not yes:
            raise typer.BadParameter(
                f"--time 0 --size 0 keeps no acknowledged messages: {namespace} deletes them now, also from the tier, "
                "and of topics without subscriptions all messages; nothing was changed: give --yes to do it"
            )
        gone = "they are deleted, also from the tier, as soon as their ledger is closed"
        sentence = f"{namespace} keeps no acknowledged messages: {gone}"
    else:
        age, most = ("without limit" if n < 0 else f"{n} {unit}" for n, unit in ((time, "min"), (size, "MiB")))
        sentence = f"{namespace} keeps acknowledged messages; age: {age}, size of a topic: {most}"
    value = {"retentionTimeInMinutes": time, "retentionSizeInMB": size}
    session.change("POST", namespace_path(namespace, "retention"), value, sentence)


@SCHEMAS.command("get")
def get_schema(
    session: Session,
    topic: TopicArgument,
    *,
    version: Annotated[int | None, typer.Option("--version", "-v", min=0, help="A version by its number.")] = None,
    every: Annotated[bool, typer.Option("--all-version", "-a", help="All versions, oldest first.")] = False,
) -> None:
    """Show the newest schema of a topic, one version, or all.

    Example: afterglow schemas get orders --all-version
    """
    if every and version is not None:
        raise typer.BadParameter("--version asks for one, --all-version for all: give one of them")
    absent = f"{topic} has no schema"
    if every:
        found: list[Any] = session.client.fields(_schema(topic, "s"), "getSchemaResponses")["getSchemaResponses"]
        session.out.rows(found, absent)
    else:
        session.out.record(session.client.get(_schema(topic, "" if version is None else f"/{version}")), absent)


@SCHEMAS.command("upload")
def upload_schema(
    session: Session,
    topic: TopicArgument,
    *,
    file: Annotated[
        Path,
        typer.Option(
            *("--filename", "-f"),
            exists=True,
            dir_okay=False,
            help='JSON: {"type": "JSON", "schema": "…Avro as text…", "properties": {}}.',
        ),
    ],
) -> None:
    """Add a version to the schema of a topic; one with the same content is not added again.

    Example: afterglow schemas upload orders --filename order.json
    """
    try:
        schema = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigError(f"--filename {str(file)!r} is not valid JSON: {error}") from error
    added = session.client.call("POST", _schema(topic), schema) or {}
    number = (added.get("version") or {}).get("version")
    session.out.say(f"{topic} has version {number} of its schema", {"version": number})


@SCHEMAS.command("delete")
def delete_schema(
    session: Session,
    topic: TopicArgument,
    *,
    force: Annotated[bool, typer.Option("--force", "-f", help="Also where messages name its versions.")] = False,
) -> None:
    """Forget all versions of a topic's schema.

    Example: afterglow schemas delete orders
    """
    session.client.call("DELETE", _schema(topic), query={"force": "true"} if force else None)
    session.out.say(f"deleted the schema of {topic}")


def _schema(topic: TopicName, rest: str = "") -> str:
    return f"schemas/{topic.namespace}/{encode_name(topic.local_name)}/schema{rest}"
