"""Commands of ``pulsar-admin`` for clusters, brokers, tenants, namespaces, topics and schemas.

A command that makes one call for a topic, or for each of its partitions, and prints the answer is a row of
:data:`_TABLE`. Commands that need several calls or combine arguments are functions below the table.
"""

from __future__ import annotations

import inspect
import json
import string
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from afterglow.cli import parameters
from afterglow.cli.command import AdminSession, CommandGroup, namespace_path, topic_path, with_parameters
from afterglow.cli.parameters import Force, NamespaceArgument, PriorityArgument, Subscription, TopicArgument
from afterglow.errors import AfterglowError, ConfigError
from afterglow.metadata.names import TopicName, encode_name

CLUSTERS = CommandGroup("clusters", "Clusters, with the commands of pulsar-admin.")
BROKERS = CommandGroup("brokers", "Brokers, with the commands of pulsar-admin.")
NAMESPACES = CommandGroup("namespaces", "Namespaces, with the commands of pulsar-admin.", read_priority=True)
SCHEMAS = CommandGroup("schemas", "Schemas of topics, with the commands of pulsar-admin.")
TENANTS = CommandGroup("tenants", "Tenants, with the commands of pulsar-admin.")
TOPICS = CommandGroup("topics", "Topics, with the commands of pulsar-admin and additional ones.", read_priority=True)
_GROUPS: Final = {
    "brokers": BROKERS,
    "clusters": CLUSTERS,
    "namespaces": NAMESPACES,
    "tenants": TENANTS,
    "topics": TOPICS,
}

Given = dict[str, Any]
"""Arguments and options of a command by parameter name."""
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]

_PARAMETERS: Final[dict[str, Any]] = {
    "cluster": Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster.")],
    "tenant": Tenant,
    "namespace": NamespaceArgument,
    "topic": TopicArgument,
    "subscription": Subscription,
    "count": parameters.Count,
    "partitions": Annotated[int, typer.Option("--partitions", "-p", min=1, help="Number of partitions.")],
    "priority": PriorityArgument,
    "force": Force,
    "applied": Annotated[bool, typer.Option("--applied", "-ap", help="Show the effective values of all levels.")],
    "ttl": Annotated[
        int,
        typer.Option(
            *("--messageTTL", "-ttl"),
            metavar="TIME",
            parser=parameters.read_seconds,
            help="Age at which unacknowledged messages expire, such as 2d; 0: never.",
        ),
    ],
    "lag": Annotated[
        int,
        typer.Option(
            *("--lag", "-l"),
            metavar="TIME",
            parser=parameters.read_milliseconds,
            help="Time from offload to the deletion of the hot copy, such as 4h; seconds if there is no unit.",
        ),
    ],
}
"""Arguments and options that rows of the table refer to."""


@dataclass(frozen=True, slots=True)
class _AdminCall:
    """A call of a table row with all parameters filled in."""

    session: AdminSession
    method: str
    path: str
    body: object
    query: dict[str, str]
    given: Given


# Output forms: each makes the call of a row and prints the answer.

Answer = Callable[[_AdminCall], None]


def _done(message: str | Callable[[Given], str]) -> Answer:
    """Print a message after the call."""

    def answer(call: _AdminCall) -> None:
        call.session.client.call(call.method, call.path, call.body, query=call.query)
        call.session.out.say(message.format(**call.given) if isinstance(message, str) else message(call.given))

    return answer


def _names(label: str) -> Answer:
    """Print a list of names; in JSON each under a label."""
    return lambda call: call.session.out.lines(label, call.session.client.names(call.path))


def _record(absent: str) -> Answer:
    """Print an object, or a message if it is not set."""
    return lambda call: call.session.out.record(call.session.client.get(call.path, **call.query), absent)


def _statistics(call: _AdminCall) -> None:
    """Print an object with lists of objects in it."""
    call.session.out.statistics(call.session.client.fields(call.path))


def _partitions(call: _AdminCall) -> None:
    """Print the number of partitions."""
    count = call.session.partitions_of(call.given["topic"])
    call.session.out.say(f"{count} partitions", {"partitions": count})


def _rows(absent: str) -> Answer:
    """Print a list of objects, or a message if it is empty."""
    return lambda call: call.session.out.rows(call.session.client.rows(call.path), absent)


def _value(label: str, absent: str, words: Callable[[Any], str] = str) -> Answer:
    """Print one value, or a message if it is not set; in JSON under a label."""

    def answer(call: _AdminCall) -> None:
        found = call.session.client.get(call.path)
        call.session.out.say(absent if found is None else words(found), {label: found})

    return answer


def _text(label: str, expected: str | None = None) -> Answer:
    """Print an answer that is not JSON; fail if it is not the expected one."""

    def answer(call: _AdminCall) -> None:
        text = call.session.client.content(call.path).content.decode("utf-8", "replace").strip()
        if expected not in {None, text}:
            raise AfterglowError(f"the broker reports {label} {text!r}, not {expected!r}")
        call.session.out.say(text, {label: text})

    return answer


def _position(message: str) -> Answer:
    """Print the position of a message; in JSON with the topic."""

    def answer(call: _AdminCall) -> None:
        last = call.session.client.fields(call.path, "ledgerId", "entryId", method=call.method)
        batch_index = last.get("batchIndex", -1)
        position = f"{last['ledgerId']}:{last['entryId']}" + (f":{batch_index}" if batch_index >= 0 else "")
        row = {"topic": str(call.given["topic"]), "ledger_id": last["ledgerId"], "entry_id": last["entryId"]}
        if call.method == "GET":
            row["batch_index"] = batch_index
        call.session.out.say(message.format(**call.given, position=position), row)

    return answer


@dataclass(frozen=True, slots=True)
class _Command:
    """A command that makes one call, or one for each partition."""

    name: str
    """Group and command."""
    example: str
    """Arguments of the example in the help."""
    help: str
    call: str
    """Method and path below ``/admin/v2``; names in braces are parameters."""
    answer: Answer
    body: str | None = None
    """The parameter that is sent as JSON."""
    options: tuple[str, ...] = ()
    """Flags that are sent in the query."""
    defaults: Given = field(default_factory=dict)
    working: str | None = None
    """Shown on a terminal during the call."""
    each_partition: bool = False
    """Whether a partitioned topic means a call for each partition; ``label`` then names it in messages."""
    partitioned: str | None = None
    """The call for a partitioned topic, if it has its own."""


def _expiry(ttl_s: int) -> str:
    return f"expire after {ttl_s} s" if ttl_s else "do not expire"


_NAMESPACE: Final = "namespaces/{namespace}"
_SUBSCRIPTION: Final = "{topic}/subscription/{subscription}"
_DEFAULT: Final = {"namespace": parameters.DEFAULT}
_read_priority: Final = _value(
    "dataReadPriority",
    "not set at this level; `topics policy` shows the effective value",
    lambda found: str(found).lower().replace("_", "-"),
)
_offload_policies: Final = _record("not set at this level; --applied shows the effective values")
_deletion_lag: Final = _value(
    "offloadDeletionLagMs",
    "Unset for namespace. Defaulting to broker setting.",
    lambda lag_ms: f"{lag_ms / 60_000:g} minute(s)",
)

# fmt: off
_TABLE: Final = (
    _Command("clusters list", "", "List the clusters.", "GET clusters", _names("cluster")),
    _Command("clusters get", "standalone", "Show the addresses of a cluster.",
             "GET clusters/{cluster}", _record("not set")),
    _Command("brokers list", "", "List the active brokers.", "GET brokers", _names("broker")),
    _Command("brokers healthcheck", "", "Check the health of a broker; exit 1 if it fails.",
             "GET brokers/health", _text("health", "ok")),
    _Command("brokers version", "", "Show the Pulsar release that the broker is compatible with.",
             "GET brokers/version", _text("version")),
    _Command("brokers get-runtime-config", "--json", "Show the settings of the broker, with secrets masked.",
             "GET brokers/configuration/runtime", _record("no settings")),
    _Command("tenants list", "", "List all tenants.", "GET tenants", _names("tenant")),
    _Command("tenants get", "public", "Show a tenant's administrators and clusters.",
             "GET tenants/{tenant}", _record("not set")),
    _Command("tenants delete", "acme", "Delete a tenant that has no namespaces.",
             "DELETE tenants/{tenant}", _done("deleted {tenant}")),
    _Command("namespaces create", "public/orders", "Create a namespace in an existing tenant.",
             f"PUT {_NAMESPACE}", _done("created {namespace}")),
    _Command("namespaces list", "public", "List the namespaces of a tenant.",
             "GET namespaces/{tenant}", _names("namespace"), defaults={"tenant": "public"}),
    _Command("namespaces delete", "public/orders", "Delete a namespace that has no topics.",
             f"DELETE {_NAMESPACE}", _done("deleted {namespace}")),
    _Command("namespaces policies", "public/default --json", "Show all policies of a namespace.",
             f"GET {_NAMESPACE}", _record("not set")),
    _Command("namespaces topics", "public/default",
             "List the topics of a namespace, and each partition of a partitioned topic.",
             f"GET {_NAMESPACE}/topics", _names("topic")),
    _Command("namespaces unload", "public/default",
             "Unload all topics of a namespace; clients reconnect and load them again.",
             f"PUT {_NAMESPACE}/unload", _done("unloaded {namespace}"), working="closing the topics of {namespace}"),
    _Command("namespaces get-retention", "public/default", "Show the retention of acknowledged messages.",
             f"GET {_NAMESPACE}/retention",
             _record("not set; defaultRetentionTimeInMinutes and defaultRetentionSizeInMB apply")),
    _Command("namespaces remove-retention", "public/default",
             "Return to the broker's retention; if that is 0, acknowledged messages are deleted.",
             f"DELETE {_NAMESPACE}/retention",
             _done("removed the retention of {namespace}; the broker's defaultRetentionTimeInMinutes and "
                   "defaultRetentionSizeInMB apply: 0 keeps no acknowledged messages")),
    _Command("namespaces set-message-ttl", "public/default -ttl 2d",
             "Set the age at which unacknowledged messages expire.", f"POST {_NAMESPACE}/messageTTL",
             _done(lambda on: f"messages in {on['namespace']} {_expiry(on['ttl'])}"), body="ttl"),
    _Command("namespaces get-message-ttl", "public/default",
             "Show the age at which unacknowledged messages expire, in seconds.",
             f"GET {_NAMESPACE}/messageTTL", _value("messageTTL", "not set; ttlDurationDefaultInSeconds applies")),
    _Command("namespaces remove-message-ttl", "public/default",
             "Return to the broker's message TTL.",
             f"DELETE {_NAMESPACE}/messageTTL", _done("removed the message TTL of {namespace}")),
    _Command("namespaces get-offload-policies", "public/default --json",
             "Show the offload policies of a namespace.",
             f"GET {_NAMESPACE}/offloadPolicies", _offload_policies, options=("applied",)),
    _Command("namespaces remove-offload-policies", "public/default",
             "Return to the broker's offload settings, including threshold, deletion lag and read priority.",
             # Pulsar has no DELETE at the path of the policies.
             f"DELETE {_NAMESPACE}/removeOffloadPolicies", _done("removed the offload policies of {namespace}")),
    _Command("namespaces set-offload-deletion-lag", "public/default --lag 4h",
             "Set the time from the offload of a ledger to the deletion of its hot copy.",
             f"PUT {_NAMESPACE}/offloadDeletionLagMs",
             _done(lambda on: f"{on['namespace']} deletes hot copies {on['lag'] / 1000:g} s after offload"),
             body="lag"),
    _Command("namespaces get-offload-deletion-lag", "public/default",
             "Show the time from the offload of a ledger to the deletion of its hot copy.",
             f"GET {_NAMESPACE}/offloadDeletionLagMs", _deletion_lag),
    _Command("namespaces clear-offload-deletion-lag", "public/default", "Return to the broker's deletion lag.",
             f"DELETE {_NAMESPACE}/offloadDeletionLagMs", _done("cleared the deletion lag of {namespace}")),
    _Command("namespaces set-data-read-priority", "public/default bookkeeper-first",
             "Set the copy that serves a read while both exist.",
             f"PUT {_NAMESPACE}/dataReadPriority", _done("set the data read priority of {namespace}"), body="priority"),
    _Command("namespaces get-data-read-priority", "public/default",
             "Show the copy that serves a read while both exist.",
             f"GET {_NAMESPACE}/dataReadPriority", _read_priority),
    _Command("namespaces remove-data-read-priority", "public/default", "Return to the broker's read priority.",
             f"DELETE {_NAMESPACE}/dataReadPriority", _done("removed the data read priority of {namespace}")),
    _Command("topics list", "public/default",
             "List the topics of a namespace, and each partition of a partitioned topic.",
             f"GET {_NAMESPACE}/topics", _names("topic"), defaults=_DEFAULT),
    _Command("topics unload", "orders", "Unload a topic; clients reconnect and load it again.",
             "PUT {topic}/unload", _done("unloaded {topic}"), working="closing {topic}"),
    _Command("topics truncate", "orders", "Acknowledge all messages for all subscriptions, and delete them.",
             "DELETE {topic}/truncate", _done("truncated {topic}"), working="truncating {topic}"),
    _Command("topics trim-topic", "orders",
             "Delete closed ledgers whose retention has expired now, instead of at the next check.",
             "POST {topic}/trim", _done("trimmed {topic}"), working="trimming {topic}"),
    _Command("topics create-partitioned-topic", "orders --partitions 4",
             "Create a topic with partitions; `create --partitions` does the same.",
             "PUT {topic}/partitions", _done("created {topic} with {partitions} partitions"),
             body="partitions", working="creating {partitions} partitions"),
    _Command("topics update-partitioned-topic", "orders --partitions 8", "Increase the number of partitions. "
             "Keys are redistributed: later messages of a key may go to another partition.",
             "POST {topic}/partitions", _done("{topic} has {partitions} partitions"),
             body="partitions", working="creating partitions"),
    _Command("topics list-partitioned-topics", "public/default", "List the partitioned topics of a namespace.",
             "GET persistent/{namespace}/partitioned", _names("topic"), defaults=_DEFAULT),
    _Command("topics delete-partitioned-topic", "orders --force",
             "Delete a partitioned topic with all its partitions; `delete` does the same.",
             "DELETE {topic}/partitions", _done("deleted {topic}"), options=("force",), working="deleting {topic}"),
    _Command("topics subscriptions", "orders", "List the subscriptions of a topic.",
             "GET {topic}/subscriptions", _names("subscription")),
    _Command("topics unsubscribe", "orders -s billing",
             "Delete a subscription; retention then applies to messages that no other subscription has in its backlog.",
             f"DELETE {_SUBSCRIPTION}", _done("deleted the subscription {subscription} of {topic}"),
             options=("force",)),
    _Command("topics skip", "orders -s billing -n 10",
             "Skip the next entries of a subscription; a batch is one entry.",
             f"POST {_SUBSCRIPTION}/skip/{{count}}", _done("skipped {count} entries for {subscription} of {topic}")),
    _Command("topics clear-backlog", "orders -s billing", "Acknowledge all messages for a subscription.",
             f"POST {_SUBSCRIPTION}/skip_all", _done("cleared the backlog of {subscription} of {topic}")),
    _Command("topics get-offload-policies", "orders --applied", "Show the offload policies of a topic.",
             "GET {topic}/offloadPolicies", _offload_policies, options=("applied",)),
    _Command("topics remove-offload-policies", "orders", "Return to the namespace's offload policies.",
             "DELETE {topic}/offloadPolicies", _done("removed the offload policies of {topic}")),
    _Command("topics set-data-read-priority", "orders bookkeeper-first",
             "Set the copy that serves a read while both exist, also for open readers.",
             "PUT {topic}/dataReadPriority", _done("set the data read priority of {topic}"), body="priority"),
    _Command("topics get-data-read-priority", "orders", "Show the copy that serves a read while both exist.",
             "GET {topic}/dataReadPriority", _read_priority),
    _Command("topics remove-data-read-priority", "orders", "Return to the namespace's read priority.",
             "DELETE {topic}/dataReadPriority", _done("removed the data read priority of {topic}")),
    _Command("topics policy", "orders --json", "Show every effective setting of a topic, with the level that set it.",
             "GET {topic}/policy", _rows("no settings")),
    _Command("topics stats", "orders --json", "Show the counters, producers and subscriptions of a topic.",
             "GET {topic}/stats", _statistics, partitioned="GET {topic}/partitioned-stats"),
    _Command("topics stats-internal", "orders", "Show the ledgers and cursors of a topic.",
             "GET {topic}/internalStats", _statistics, partitioned="GET {topic}/partitioned-internalStats"),
    _Command("topics info-internal", "orders --json",
             "Show the ledger list of a topic as stored in metadata, with the offload state of each ledger.",
             "GET {topic}/internal-info", _statistics, each_partition=True),
    _Command("topics last-message-id", "orders", "Show the position of the newest message of a topic.",
             "GET {topic}/lastMessageId", _position("{label}{position}"), each_partition=True),
    _Command("topics terminate", "orders", "Terminate a topic: it accepts no more messages, and stays readable.",
             "POST {topic}/terminate", _position("terminated {topic} at {position}"), each_partition=True),
    _Command("topics get-partitioned-topic-metadata", "orders",
             "Show the number of partitions of a topic; 0: it is not partitioned.",
             "GET {topic}/partitions", _partitions),
)
# fmt: on


def _register(row: _Command) -> None:
    group, command = row.name.split()
    in_path = [name for _, name, _, _ in string.Formatter().parse(row.call) if name]
    names = [*in_path, *([row.body] if row.body else ()), *row.options]
    defaults = dict.fromkeys(row.options, False) | row.defaults

    def call(session: AdminSession, template: str, given: Given) -> None:
        method, path = template.split()
        path = path.format(**{name: _encoded(given[name]) for name in in_path})
        query = {name: "true" for name in row.options if given[name]}
        row.answer(_AdminCall(session, method, path, given[row.body] if row.body else None, query, given))

    def run(session: AdminSession, **given: Any) -> None:
        with session.out.working(row.working.format(**given)) if row.working else nullcontext():
            if row.each_partition:
                for topic in session.each_of(given["topic"]):
                    label = "" if topic == given["topic"] else f"{topic} "
                    call(session, row.call, {**given, "topic": topic, "label": label})
            elif row.partitioned and session.partitions_of(given["topic"]):
                call(session, row.partitioned, given)
            else:
                call(session, row.call, given)

    run.__doc__ = f"{row.help}\n\nExample: afterglow {row.name} {row.example}".rstrip()
    annotations = {"session": AdminSession} | {name: _PARAMETERS[name] for name in names}
    taken = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=annotation,
            default=defaults.get(name, inspect.Parameter.empty),
        )
        for name, annotation in annotations.items()
    ]
    _GROUPS[group].command(command)(with_parameters(run, taken))


def _encoded(value: object) -> str:
    """Encode a parameter for a path."""
    if isinstance(value, TopicName):
        return topic_path(value)
    return encode_name(value) if isinstance(value, str) else str(value)


for _row in _TABLE:
    _register(_row)


# Commands that need several calls or combine arguments.

AdminRoles = Annotated[
    str | None,
    typer.Option("--admin-roles", "-r", metavar="ROLES", help="Roles that administer the tenant, separated by commas."),
]
Clusters = Annotated[
    str | None,
    typer.Option("--allowed-clusters", "-c", metavar="CLUSTERS", help="Clusters, separated by commas. Default: all."),
]


@TENANTS.command("create")
def create_tenant(
    session: AdminSession, tenant: Tenant, *, roles: AdminRoles = None, clusters: Clusters = None
) -> None:
    """Create a tenant.

    Example: afterglow tenants create acme --admin-roles alice,bob
    """
    allowed = session.client.names("clusters") if clusters is None else _split(clusters)
    value = {"adminRoles": _split(roles or ""), "allowedClusters": allowed}
    session.change("PUT", f"tenants/{encode_name(tenant)}", value, f"created {tenant}")


@TENANTS.command("update")
def update_tenant(
    session: AdminSession, tenant: Tenant, *, roles: AdminRoles = None, clusters: Clusters = None
) -> None:
    """Change the admin roles or clusters of a tenant; options that are not given stay unchanged.

    Example: afterglow tenants update acme --admin-roles alice
    """
    given = {"adminRoles": roles, "allowedClusters": clusters}
    changed: dict[str, Any] = {name: _split(value) for name, value in given.items() if value is not None}
    if not changed:
        raise typer.BadParameter("give --admin-roles ROLES, --allowed-clusters CLUSTERS, or both")
    path = f"tenants/{encode_name(tenant)}"
    session.change("POST", path, {**session.client.fields(path), **changed}, f"updated {tenant}")


def _split(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


@NAMESPACES.command("set-retention")
def set_retention(
    session: AdminSession,
    namespace: NamespaceArgument,
    *,
    time: Annotated[
        int,
        typer.Option(
            *("--time", "-t"),
            metavar="TIME",
            parser=parameters.read_minutes_or_none,
            help="Retention time, such as 3h; -1: unlimited.",
        ),
    ],
    size: Annotated[
        int,
        typer.Option(
            *("--size", "-s"),
            metavar="SIZE",
            parser=parameters.read_mebibytes_or_none,
            help="Retention size of each topic, such as 10G; -1: unlimited.",
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the deletion by --time 0 --size 0.")] = False,
) -> None:
    """Set the retention of messages that all subscriptions have acknowledged; --time 0 --size 0 deletes them.

    Messages are deleted from hot log and tier, ledger by ledger, and cannot be restored. Therefore zeros need --yes.
    In a topic without subscriptions, all messages count as acknowledged.

    Example: afterglow namespaces set-retention public/default --time 3d --size -1
    """
    if time == size == 0:
        if not yes:
            raise typer.BadParameter(
                f"--time 0 --size 0 keeps no acknowledged messages: {namespace} deletes them now, also from the tier, "
                "and all messages of topics without subscriptions; nothing was changed; give --yes to confirm"
            )
        message = f"{namespace} keeps no acknowledged messages: they are deleted, also from the tier"
    else:
        max_age, max_size = ("unlimited" if n < 0 else f"{n} {unit}" for n, unit in ((time, "min"), (size, "MiB")))
        message = f"{namespace} retains acknowledged messages; age: {max_age}, size of a topic: {max_size}"
    value = {"retentionTimeInMinutes": time, "retentionSizeInMB": size}
    session.change("POST", namespace_path(namespace, "retention"), value, message)


@SCHEMAS.command("get")
def get_schema(
    session: AdminSession,
    topic: TopicArgument,
    *,
    version: Annotated[int | None, typer.Option("--version", "-v", min=0, help="Version number.")] = None,
    every: Annotated[bool, typer.Option("--all-version", "-a", help="Show all versions, oldest first.")] = False,
) -> None:
    """Show the newest schema of a topic, one version, or all.

    Example: afterglow schemas get orders --all-version
    """
    if every and version is not None:
        raise typer.BadParameter("--version and --all-version exclude each other; give one")
    absent = f"{topic} has no schema"
    if every:
        found: list[Any] = session.client.fields(_schema(topic, "s"), "getSchemaResponses")["getSchemaResponses"]
        session.out.rows(found, absent)
    else:
        session.out.record(session.client.get(_schema(topic, "" if version is None else f"/{version}")), absent)


@SCHEMAS.command("upload")
def upload_schema(
    session: AdminSession,
    topic: TopicArgument,
    *,
    file: Annotated[
        Path,
        typer.Option(
            *("--filename", "-f"),
            exists=True,
            dir_okay=False,
            help='JSON file: {"type": "JSON", "schema": "<Avro schema as a string>", "properties": {}}.',
        ),
    ],
) -> None:
    """Upload a schema of a topic as a new version, unless it equals an existing one.

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
    session: AdminSession,
    topic: TopicArgument,
    *,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Delete it even if messages refer to its versions.")
    ] = False,
) -> None:
    """Delete all versions of a topic's schema.

    Example: afterglow schemas delete orders
    """
    session.client.call("DELETE", _schema(topic), query={"force": "true"} if force else None)
    session.out.say(f"deleted the schema of {topic}")


def _schema(topic: TopicName, rest: str = "") -> str:
    return f"schemas/{topic.namespace}/{encode_name(topic.local_name)}/schema{rest}"
