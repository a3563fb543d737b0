"""Policies, namespaces, clusters, schemas and brokers through Pulsar's own ``pulsar-admin``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.admin.conftest import Admin
    from tests.support.java_tools import JavaTools

# The first run fetches the tools, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

TOPIC = "public/default/t"
NAMESPACE = "public/default"


def check(tools: JavaTools, *cases: tuple[str, str]) -> None:
    """Run commands; each must print its text, with any white space as one space, or nothing if it is empty."""
    printed = tools.admin_all([command for command, _ in cases])
    _, *answers = re.split(r"\[\d+/\d+\] Executing admin ", printed)
    assert len(answers) == len(cases), printed
    for (command, expected), answer in zip(cases, answers, strict=True):
        shown = " ".join(answer.removeprefix(command).split())
        assert expected in shown if expected else shown == "", (command, printed)


def test_policies_of_topics(tools: JavaTools, admin: Admin) -> None:
    admin.do("PUT", "persistent/public/default/t")
    check(
        tools,
        (f"topicPolicies get-retention {TOPIC}", "null"),
        (f"topicPolicies set-retention {TOPIC} -s 10M -t 1h", ""),
        (f"topicPolicies get-retention {TOPIC}", '{ "retentionTimeInMinutes" : 60, "retentionSizeInMB" : 10 }'),
        (f"topicPolicies set-retention {TOPIC} -s 20M -t 2h -g", ""),
        (f"topics get-retention {TOPIC} -ap", '"retentionTimeInMinutes" : 60'),
        (f"topicPolicies remove-retention {TOPIC}", ""),
        (f"topics get-retention {TOPIC} -ap", '"retentionTimeInMinutes" : 120'),
        (f"topicPolicies set-message-ttl {TOPIC} -t 1h", ""),
        (f"topicPolicies get-message-ttl {TOPIC} -ap", "3600"),
        (f"topicPolicies remove-message-ttl {TOPIC}", ""),
        (f"topicPolicies set-persistence {TOPIC} -e 1 -w 1 -a 1 -r 5", ""),
        (f"topicPolicies get-persistence {TOPIC}", '"managedLedgerMaxMarkDeleteRate" : 5.0'),
        (f"topicPolicies set-max-producers {TOPIC} -p 5", ""),
        (f"topicPolicies get-max-producers {TOPIC}", "5"),
        (f"topicPolicies set-subscription-types-enabled {TOPIC} -t Shared", ""),
        (f"topicPolicies get-subscription-types-enabled {TOPIC}", '[ "Shared" ]'),
        # The shell prints the reason of a refused POST, and nothing of a refused GET.
        (f"topicPolicies get-backlog-quota {TOPIC} -ap", ""),
        (f"topicPolicies set-dispatch-rate {TOPIC} -md 5", "dispatchRate is not served: rates are not limited"),
        (f"topicPolicies delete {TOPIC}", ""),
        (f"topicPolicies get-max-producers {TOPIC}", "null"),
    )


def test_namespaces(tools: JavaTools, admin: Admin) -> None:
    admin.do("PUT", "persistent/public/default/t/subscription/s")
    check(
        tools,
        (f"namespaces policies {NAMESPACE}", '"replication_clusters" : [ "standalone" ]'),
        (f"namespaces policies {NAMESPACE}", '"numBundles" : 4'),
        (f"namespaces set-clusters {NAMESPACE} -c mars", "topics are not replicated"),
        (f"namespaces permissions {NAMESPACE}", ""),
        (f"namespaces grant-permission {NAMESPACE} --role dev --actions produce", "permissions are not enforced"),
        (f"namespaces unload {NAMESPACE}", ""),
        (f"namespaces unload {NAMESPACE} -b 0x00000000_0x40000000", "a single broker serves the whole cluster"),
        (f"namespaces clear-backlog {NAMESPACE} -force", "use the call for a single topic"),
        (f"namespaces set-properties {NAMESPACE} --properties a=b", ""),
        (f"namespaces get-properties {NAMESPACE}", '{ "a" : "b" }'),
        (f"namespaces clear-properties {NAMESPACE}", ""),
        (f"namespaces set-auto-topic-creation {NAMESPACE} -e -t partitioned -n 2", ""),
        (f"namespaces get-auto-topic-creation {NAMESPACE}", '"defaultNumPartitions" : 2'),
        (f"namespaces get-schema-compatibility-strategy {NAMESPACE}", "UNDEFINED"),
        (f"namespaces set-deduplication {NAMESPACE} -e", "deduplication is not served"),
        (f"namespaces delete {NAMESPACE} -f", "forceDeleteNamespaceAllowed"),
    )
    assert admin.get("persistent/public/default/t/subscriptions") == ["s"]


def test_clusters_and_tenants(tools: JavaTools, admin: Admin) -> None:
    check(
        tools,
        ("clusters create mars --url http://mars:8080 --broker-url pulsar://mars:6650", ""),
        ("clusters list", "mars standalone"),
        ("clusters get mars", '"serviceUrl" : "http://mars:8080"'),
        ("clusters update-peer-clusters standalone --peer-clusters mars", "/clusters/standalone/peers is not served"),
        ("tenants create acme -r dev -c mars", ""),
        ("clusters delete mars", "allowedClusters of acme"),
        ("tenants delete acme", ""),
        ("clusters delete mars", ""),
        ("clusters delete standalone", "is this cluster"),
    )
    assert admin.get("clusters") == ["standalone"]


def test_schemas_and_brokers(tools: JavaTools, admin: Admin, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type":"STRING","schema":"","properties":{}}')
    broker = f"127.0.0.1:{admin.port}"
    check(
        tools,
        (f"schemas upload {TOPIC} -f {schema}", ""),
        (f"schemas get {TOPIC}", '"version": 0'),
        ("brokers list standalone", broker),
        ("brokers leader-broker", f'"brokerId" : "{broker}"'),
        ("brokers list-dynamic-config", ""),
        ("brokers update-dynamic-config --config maxMessageSize --value 5", "cannot be changed while the broker runs"),
        ("brokers healthcheck --topic-version V2", "ok"),
        ("broker-stats load-report", "Goodbye!"),  # refused, without a reason: see above
    )
