"""``afterglow detach``: let a cluster trim its topics by its own policies again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.output import Output, printable
from afterglow.cli.parameters import AdminConnection, CaFile, Token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from afterglow.attach.detach import AttachedTopicEnd


@app.command()
def detach(
    context: typer.Context,
    cluster: Annotated[str, typer.Argument(help="Admin API of the cluster: http://HOST:8080.")],
    *,
    metadata: Annotated[
        str, typer.Option(help="Metadata of afterglow attach: zk://HOST:2181[/CHROOT] or sqlite:PATH.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    zookeeper: Annotated[
        str | None, typer.Option(help="Metadata of the cluster, zk://HOST:2181. Default: as its brokers report.")
    ] = None,
    cluster_name: Annotated[
        str | None, typer.Option(help="Name of the cluster. Default: as its brokers report.")
    ] = None,
    token: Token = None,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per topic.")] = False,
) -> int:
    """Delete the subscriptions by which attach holds back trimming. Segments stay in the tier, and can be read.

    Stop afterglow attach before. Entries that are in no segment stay in the cluster for as long as its own retention
    and other subscriptions keep them. Without --yes nothing is changed before the answer to a question.

    Example: afterglow detach http://pulsar:8080 --metadata sqlite:a.db
    """
    from afterglow.attach.detach import Detachment  # noqa: PLC0415 - not needed for --help
    from afterglow.config import BrokerConfig  # noqa: PLC0415
    from afterglow.metadata.cluster_credentials import ClusterCredentials  # noqa: PLC0415

    out = Output(as_json=as_json)
    connection = context.obj.overridden(AdminConnection(None, token, ca_file))
    credentials = ClusterCredentials.of(connection.token, connection.ca_file)
    config = BrokerConfig()
    with Detachment.open(
        cluster, metadata, credentials, config, zookeeper=zookeeper, cluster=cluster_name
    ) as detachment:
        topics = detachment.topics()
        rows = [
            {
                "topic": str(found.topic),
                "subscriptions": list(found.subscriptions) if as_json else ", ".join(found.subscriptions),
                "in_tier": None if found.in_tier is None else str(found.in_tier),
                "last": None if found.last is None else str(found.last),
            }
            for found in topics
        ]
        out.rows(rows, f"{metadata} has no attached topics of cluster {detachment.paths.cluster}")
        held = [found for found in topics if found.subscriptions]
        if topics:
            out.say(_consequences(topics, cluster, metadata))
        if held and not yes and not _confirmed(len(held)):
            out.say("nothing was changed; give --yes to detach")
            return DONE
        results = detachment.detach(config) if held or yes else {}
    failed = {topic: error for topic, error in results.items() if error is not None}
    for topic, error in failed.items():
        typer.echo(f"afterglow: {printable(f'{topic}: {error}')}", err=True)
    if failed:
        return FAILED
    out.say(f"deleted the subscriptions of {len(results)} topic{'s' * (len(results) != 1)}")
    return DONE


def _confirmed(count: int) -> bool:
    """Ask, where a person can answer."""
    if not sys.stdin.isatty():
        return False
    return typer.confirm(f"delete the subscriptions of {count} topic{'s' * (count != 1)}?", err=True)


def _consequences(topics: Sequence[AttachedTopicEnd], cluster: str, metadata: str) -> str:
    behind = sum(found.is_behind for found in topics)
    lines = [
        f"Segments stay in the tier; read them with: afterglow read {cluster} TOPIC --metadata {metadata}",
        "afterglow attach with the same metadata continues behind them.",
    ]
    if behind:
        lines.append(
            f"{behind} of {len(topics)} topics have entries behind in_tier: the cluster trims these by its own "
            "policies, and they are in no segment."
        )
    return "\n".join(lines)
