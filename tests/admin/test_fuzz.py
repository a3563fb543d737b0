from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterglow.admin.app import ALL_RESOURCES
from afterglow.format.entry import encode_entry
from afterglow.format.proto.pulsar_api_pb2 import MessageMetadata

if TYPE_CHECKING:
    from tests.admin.conftest import Admin


def words(line: str) -> st.SearchStrategy[str]:
    return st.sampled_from(line.split())


ANY_PART = st.one_of(
    words("public default t s partitioned stats 0 1 -1 99999999999999999999 .. . %2F %00 %FF % a+b 0:0"),
    st.text(max_size=12).map(lambda text: quote(text, safe="", errors="replace")),
)
USUAL_PARTS = {
    "tenant": words("public acme"),
    "namespace": words("default other"),
    "topic": words("t t p p-partition-0 new"),
    "subscription": words("s s new"),
    "cluster": words("standalone standalone mars"),
    "timestamp": words("0 1700000000000"),
    "count": words("0 1 2"),
    "version": words("0 1"),
    "number": words("0 1 2"),
    "ledger": words("0 1 2"),
    "entry": words("0 1 2"),
    "seconds": words("0 1 100000"),
    "file": words("console.css main.js new"),
    "bundle": words("0x00000000_0x40000000 0xc0000000_0xffffffff 0x0_0x1"),
    "role": words("dev"),
    "key": words("k k2"),
    "value": words("v 5"),
    "group": words("g"),
    "broker": words("127.0.0.1:8080"),
    "rest:path": words("peers failureDomains/d load-report"),
    "name": words("maxMessageSize maxProducersPerTopic nothing"),
}
ACTIONS = [
    (method, resource.path) for resources in ALL_RESOURCES for resource in resources for method in resource.actions
]
QUERIES = words(
    "? ? ? ?force=true ?force=maybe ?authoritative=true ?perPartition=false ?applied=true ?isGlobal=true "
    "?messageTTL=5 ?messageTTL=x ?mode=ALL ?key=a ?initialPosition=earliest&messagePosition=2 ?replicated=true"
)
METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"])

NUMBERS = st.one_of(st.integers(-3, 5), st.integers(-(2**70), 2**70), st.floats())
KEYS = words(
    "adminRoles allowedClusters retentionTimeInMinutes retentionSizeInMB bookkeeperEnsemble ledgerId entryId "
    "batchIndex excluded properties partitions type schema retention_policies persistence bundles numBundles "
    "boundaries message_ttl_in_seconds replication_clusters unknown managedLedgerOffloadDriver "
    "managedLedgerOffloadBucket managedLedgerOffloadThresholdInBytes managedLedgerOffloadedReadPriority "
    "managedLedgerExtraConfigurations streamingOffloadEnabled s3ManagedLedgerOffloadCredentialSecret offload_policies "
    "partitionIndex serviceUrl brokerServiceUrl peerClusterNames allowAutoTopicCreation topicType "
    "defaultNumPartitions allowAutoSubscriptionCreation subscription_types_enabled max_topics_per_namespace"
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        NUMBERS,
        st.text(max_size=8),
        st.sampled_from(
            [
                "standalone",
                "mars",
                "http://a:1",
                "FULL",
                "Shared",
                "partitioned",
                "S3",
                "tiered-first",
                "********",
                "latest",
                "earliest",
                "0:0",
                "STRING",
                "AVRO",
                "KEY_VALUE",
            ]
        ),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
BODIES = st.one_of(
    st.none(),
    st.binary(max_size=40),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"ledgerId": NUMBERS, "entryId": NUMBERS}, optional={"batchIndex": NUMBERS}).map(
        lambda value: json.dumps(value).encode()
    ),
)

ENTRY = encode_entry(MessageMetadata(producer_name="p\r\nX: 1", sequence_id=0, publish_time=2**64 - 1), b"hello")


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, str]:
    """A method and a path: mostly such as are served, with names that are there, or nearly."""
    method, template = draw(st.sampled_from(ACTIONS))
    odd = draw(st.integers(0, 9))
    if odd == 0:
        method = draw(METHODS)
    parts = [
        draw(ANY_PART if odd == 1 else USUAL_PARTS[part[1:-1]]) if part.startswith("{") else part
        for part in template.split("/")
    ]
    if odd == 2:
        parts.insert(draw(st.integers(1, len(parts))), draw(ANY_PART))
    return method, "/".join(parts) + draw(QUERIES)


@pytest.mark.parametrize("shared", [False, True], indirect=True, ids=["no tier", "a tier"])
@given(call=calls(), body=BODIES)
@settings(max_examples=2 * (settings().max_examples or 0))
def test_every_request_is_answered_and_a_refused_one_changes_nothing(
    shared: Admin, call: tuple[str, str], body: bytes | None
) -> None:
    method, path = call
    created = shared.call("PUT", "persistent/public/default/t").status == 204
    for name, count in (("t/subscription/s", "earliest"), ("p/partitions", 2)):
        shared.call("PUT", f"persistent/public/default/{name}", count)
    if created:
        shared.write(ENTRY)
        shared.write(b"no message")
    before = shared.state()
    answer = shared.send(method, path, body)
    assert answer.status < 500, answer
    if answer.status >= 400:
        assert method == "HEAD" or answer.reason
        assert shared.state() == before
    if method in {"GET", "HEAD", "OPTIONS"}:
        assert set(shared.state()) == set(before)
