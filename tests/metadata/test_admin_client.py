"""The view of a cluster through its admin API: requests, and unexpected responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.recorded_admin import recorded_admin

from afterglow.errors import AccessDenied, ConfigError, CorruptMetadata, NotFound
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.names import Domain, NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.recorded_admin import RecordedAdmin

TOPIC = NamespaceName("a", "b").topic("c d%é", Domain.PERSISTENT)


@pytest.fixture
def admin() -> Iterator[RecordedAdmin]:
    with recorded_admin() as admin:
        yield admin


@pytest.fixture
def api(admin: RecordedAdmin) -> AdminClient:
    return AdminClient(f"{admin.url}/", ClusterCredentials())


def test_names_are_encoded_once_and_what_is_not_there_is_none(admin: RecordedAdmin, api: AdminClient) -> None:
    admin.answers["persistent/a/b/c+d%25%C3%A9/internalStats"] = {"ledgers": []}
    assert api.internal_stats(TOPIC) == {"ledgers": []}
    assert api.internal_info(TOPIC) is None
    assert api.partitions(TOPIC) == 0
    assert api.schemas(TOPIC) is None
    assert api.lookup(TOPIC) is None
    assert admin.asked == [
        "persistent/a/b/c+d%25%C3%A9/internalStats",
        "persistent/a/b/c+d%25%C3%A9/internal-info",
        "persistent/a/b/c+d%25%C3%A9/partitions",
        "schemas/a/b/c+d%25%C3%A9/schemas",
        "/lookup/v2/topic/persistent/a/b/c+d%25%C3%A9",
    ]


def test_lists_of_names_are_given(admin: RecordedAdmin, api: AdminClient) -> None:
    admin.answers |= {"tenants": ["a"], "namespaces/a": ["a/b"], "persistent/a/b": ["persistent://a/b/t"]}
    assert api.tenants() == ("a",)
    assert api.namespaces("a") == (NamespaceName("a", "b"),)
    assert api.topics(NamespaceName("a", "b")) == ("persistent://a/b/t",)
    with pytest.raises(NotFound, match="nothing is recorded of clusters"):
        api.clusters()


@pytest.mark.parametrize("answer", [[1], {"a": 1}, "a", 7])
def test_a_response_other_than_a_list_of_names_is_reported(admin: RecordedAdmin, api: AdminClient, answer: Any) -> None:
    admin.answers["tenants"] = answer
    with pytest.raises(CorruptMetadata, match=r"response for tenants: .*check that it is a Pulsar admin API"):
        api.tenants()


@pytest.mark.parametrize("answer", [[1], "a", 7, {"partitions": "two"}])
def test_a_response_that_is_not_an_object_is_reported(admin: RecordedAdmin, api: AdminClient, answer: Any) -> None:
    admin.answers["persistent/public/default/t/partitions"] = answer
    with pytest.raises(CorruptMetadata, match="check that it is a Pulsar admin API"):
        api.partitions(TopicName.parse("t"))


@pytest.mark.parametrize("url", ["pulsar://h:6650", "http://", "http://h:0", "http://h:port"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        AdminClient(url, ClusterCredentials())


def test_a_topic_policy_that_is_not_set_or_not_offered_is_none(admin: RecordedAdmin, api: AdminClient) -> None:
    topic = TopicName.parse("t")
    path = "persistent/public/default/t"
    admin.answers |= {f"{path}/messageTTL": 0, f"{path}/retention": None}
    admin.statuses[f"{path}/backlogQuotaMap"] = 405  # the brokers have topicLevelPoliciesEnabled=false
    assert api.topic_policy(topic, "messageTTL") == 0
    assert api.topic_policy(topic, "retention") is None
    assert api.topic_policy(topic, "backlogQuotaMap") is None
    assert api.topic_policy(topic, "subscriptionExpirationTime") is None
    admin.statuses[f"{path}/messageTTL"] = 403
    with pytest.raises(AccessDenied, match="status 403"):
        api.topic_policy(topic, "messageTTL")


def test_subscriptions_and_release_are_given(admin: RecordedAdmin, api: AdminClient) -> None:
    assert api.subscriptions(TopicName.parse("t")) == ()
    assert api.version() is None
    admin.answers |= {"persistent/public/default/t/subscriptions": ["a", "b"], "brokers/version": "4.0.8"}
    assert api.subscriptions(TopicName.parse("t")) == ("a", "b")
    assert api.version() == "4.0.8"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"reason": "no such role"}, "401: no such role;"),
        ({"servlet": "org.glassfish", "message": "Unauthorized", "url": "/admin/v2/clusters"}, "401: Unauthorized;"),
    ],
)
def test_the_reason_of_a_refusal_is_given_without_the_page_around_it(
    admin: RecordedAdmin, api: AdminClient, answer: dict[str, str], reason: str
) -> None:
    admin.answers["clusters"] = answer
    admin.statuses["clusters"] = 401
    with pytest.raises(AccessDenied, match=reason):
        api.clusters()
