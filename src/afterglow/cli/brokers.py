"""``afterglow brokers`` and ``afterglow clusters``: where brokers answer, whether they are well, how they are set."""

from __future__ import annotations

from typing import Annotated

import typer

from afterglow.cli.command import Group, Session
from afterglow.errors import AfterglowError
from afterglow.metadata.encoding import encode_name

CLUSTERS = Group("clusters", "Clusters and their addresses, by the names of pulsar-admin.")
BROKERS = Group("brokers", "Brokers, by the names of pulsar-admin.")


@CLUSTERS.command("list")
def list_clusters(session: Session) -> None:
    """List the clusters.

    Example: afterglow clusters list
    """
    session.out.lines("cluster", session.client.names("clusters"))


@CLUSTERS.command("get")
def get_cluster(
    session: Session, cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="The cluster.")]
) -> None:
    """Show where a cluster answers.

    Example: afterglow clusters get standalone
    """
    session.show(f"clusters/{encode_name(cluster)}", "nothing is known of it")


@BROKERS.command("list")
def list_brokers(session: Session) -> None:
    """List the brokers that run.

    Example: afterglow brokers list
    """
    session.out.lines("broker", session.client.names("brokers"))


@BROKERS.command("healthcheck")
def healthcheck(session: Session) -> None:
    """Ask a broker whether it is well; exit 1 if not.

    Example: afterglow brokers healthcheck
    """
    said = _text(session, "brokers/health")
    if said != "ok":
        raise AfterglowError(f"the broker says {said!r} of its health, not 'ok'")
    session.out.say(said, {"health": said})


@BROKERS.command("version")
def version(session: Session) -> None:
    """Show the release of Pulsar whose protocol and API are served.

    Example: afterglow brokers version
    """
    said = _text(session, "brokers/version")
    session.out.say(said, {"version": said})


@BROKERS.command("get-runtime-config")
def runtime_config(session: Session) -> None:
    """Show every setting that the broker runs with, secrets masked.

    Example: afterglow brokers get-runtime-config --json
    """
    session.show("brokers/configuration/runtime", "no settings")


def _text(session: Session, path: str) -> str:
    return session.client.content(path).content.decode("utf-8", "replace").strip()
