from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.admin.conftest import Admin


def words(line: str) -> st.SearchStrategy[str]:
    return st.sampled_from(line.split())


PARTS = st.one_of(
    words(
        "public default t p p-partition-0 partitioned s standalone persistent non-persistent namespaces tenants "
        "clusters brokers schemas partitions stats internalStats internal-info partitioned-stats lastMessageId "
        "subscriptions subscription resetcursor skip skip_all unload terminate truncate retention persistence "
        "messageTTL topics schema health configuration runtime 0 1 -1 .. . %2F %00 %FF % a+b"
    ),
    st.text(max_size=12).map(lambda text: quote(text, safe="", errors="replace")),
)
SHAPES = st.sampled_from(
    [
        "tenants/{}",
        "namespaces/{}",
        "namespaces/public/{}",
        "namespaces/public/default/{}",
        "persistent/public/default",
        "persistent/public/default/{}",
        "persistent/public/default/t/{}",
        "persistent/public/default/p/{}",
        "persistent/public/default/{}/{}",
        "persistent/public/default/t/subscription/{}",
        "persistent/public/default/t/subscription/s/{}",
        "persistent/public/default/t/subscription/s/{}/{}",
        "schemas/public/default/t/{}",
        "schemas/public/default/t/{}/{}",
        "brokers/{}",
        "{}/{}/{}",
        "{}/{}/{}/{}/{}",
    ]
)
QUERIES = st.sampled_from(["", "?force=true", "?force=maybe", "?authoritative=true", "?checkAllowAutoCreation=true"])
METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"])

NUMBERS = st.one_of(st.integers(-3, 5), st.integers(-(2**70), 2**70), st.floats())
KEYS = words(
    "adminRoles allowedClusters retentionTimeInMinutes retentionSizeInMB bookkeeperEnsemble ledgerId entryId "
    "batchIndex excluded properties partitions type schema retention_policies persistence bundles numBundles "
    "boundaries message_ttl_in_seconds replication_clusters unknown"
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        NUMBERS,
        st.text(max_size=8),
        st.sampled_from(["standalone", "latest", "earliest", "0:0", "STRING", "AVRO", "KEY_VALUE"]),
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


@st.composite
def paths(draw: st.DrawFn) -> str:
    shape = draw(SHAPES)
    return shape.format(*(draw(PARTS) for _ in range(shape.count("{}")))) + draw(QUERIES)


@given(method=METHODS, path=paths(), body=BODIES)
def test_whatever_is_sent_is_answered_and_what_is_refused_changes_nothing(
    shared: Admin, method: str, path: str, body: bytes | None
) -> None:
    for name in ("t", "t/subscription/s", "p/partitions"):
        shared.call("PUT", f"persistent/public/default/{name}", 2 if name.startswith("p") else None)
    before = shared.state()
    answer = shared.send(method, f"/admin/v2/{path}", body)
    assert answer.status < 500, answer
    if answer.status >= 400:
        assert method == "HEAD" or answer.reason
        assert shared.state() == before
    if method in {"GET", "HEAD", "OPTIONS"} and "checkAllowAutoCreation" not in path:
        assert set(shared.state()) == set(before)
