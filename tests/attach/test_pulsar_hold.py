"""Holding back trimming on a real Apache Pulsar, and what its policies do to a subscription that is behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from tests.support.pulsar_standalone import PulsarStandalone
from tests.support.raw_client import RawClient, encode_send

from afterglow.attach import Consequence, SettingsReader, check, release_bytes
from afterglow.attach.cluster_settings import Retention, Setting, Unknown
from afterglow.errors import AccessDenied, MissingDependency, SubscriptionBusy, TopicMissing
from afterglow.format.entry import encode_entry
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.pulsar import PulsarAddress, SubscriptionHolds
from afterglow.metadata.admin_client import AdminClient
from afterglow.metadata.cluster_credentials import ClusterCredentials
from afterglow.metadata.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from afterglow.format.position import Position
    from afterglow.hot.pulsar import HoldState

pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

WAIT_S = 300.0
SECRET = bytes(range(32))
SETTINGS = {
    "defaultRetentionTimeInMinutes": "0",
    "defaultRetentionSizeInMB": "0",
    "additionalSystemCursorNames": "audit,spared",
    "messageExpiryCheckIntervalInMinutes": "1",
    "subscriptionExpiryCheckIntervalInMinutes": "1",
    "backlogQuotaCheckIntervalInSeconds": "1",
    "managedLedgerMaxEntriesPerLedger": "20",
    "brokerDeleteInactiveTopicsEnabled": "false",
}


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarStandalone]:
    try:
        with PulsarStandalone(tmp_path_factory.mktemp("pulsar"), SETTINGS) as started:
            yield started
    except MissingDependency as error:
        pytest.skip(str(error))


@pytest.fixture
def holds(standalone: PulsarStandalone) -> Iterator[SubscriptionHolds]:
    with SubscriptionHolds(PulsarAddress(standalone.service_url)) as holds:
        yield holds


@pytest.fixture
def topic(request: pytest.FixtureRequest, standalone: PulsarStandalone) -> str:
    """A topic of its own, in a namespace of its own."""
    name = request.node.name.replace("_", "-")[:60]
    standalone.admin("PUT", f"namespaces/public/{name}")
    standalone.admin("PUT", f"persistent/public/{name}/t")
    return f"persistent://public/{name}/t"


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def namespace_of(topic: str) -> str:
    return f"namespaces/{TopicName.parse(topic).namespace}"


def publish(standalone: PulsarStandalone, topic: str, count: int) -> list[Position]:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=time.time_ns() // 1_000_000)
    with RawClient(standalone.service_url, timeout_s=WAIT_S) as client:
        client.lookup(topic)
        producer = client.open_producer(topic)
        frames = (encode_send(producer, number, encode_entry(metadata, b"x" * 100)) for number in range(count))
        return client.publish(frames, window=1)


def ledgers(standalone: PulsarStandalone, topic: str) -> set[int]:
    stats = standalone.admin("GET", f"{path_of(topic)}/internalStats")
    return {row["ledgerId"] for row in stats["ledgers"]}


def trim(standalone: PulsarStandalone, topic: str) -> set[int]:
    """The ledgers that remain after a trim."""
    standalone.admin("POST", f"{path_of(topic)}/trim")
    return ledgers(standalone, topic)


def until(happens: Callable[[], Any], what: str) -> Any:
    """Call until the result is true; each call is a request to a server."""
    deadline = time.monotonic() + WAIT_S
    while not (result := happens()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return result


def held_again(holds: SubscriptionHolds, topic: str, before: HoldState) -> HoldState:
    """The state after the topic was lost and is held again."""
    until(lambda: (state := holds.state(topic)).held and state.since_ms != before.since_ms, "not held again")
    return holds.state(topic)


def last_of(positions: list[Position], number: int) -> Position:
    """The last entry of a ledger, by its number."""
    ledger_id = sorted({each.ledger_id for each in positions})[number]
    return max(each for each in positions if each.ledger_id == ledger_id)


# --- trimming -------------------------------------------------------------------------------------------------------


def test_trimming_is_held_back_until_entries_are_acknowledged_and_happens_after(
    standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str
) -> None:
    state = holds.hold(topic).result(WAIT_S)
    assert state.mark_delete is not None
    assert state.mark_delete.entry_id == -1
    positions = publish(standalone, topic, 70)
    written = {each.ledger_id for each in positions}
    assert len(written) >= 3
    assert written <= trim(standalone, topic)
    found = holds.last_message_id(topic).result(WAIT_S)
    assert found.last == positions[-1]
    holds.acknowledge(topic, last_of(positions, 0)).result(WAIT_S)
    until(lambda: positions[0].ledger_id not in trim(standalone, topic), "the acknowledged ledger is not trimmed")
    assert written - {positions[0].ledger_id} <= trim(standalone, topic)
    subscription = standalone.admin("GET", f"{path_of(topic)}/stats")["subscriptions"]["afterglow"]
    assert subscription["type"] == "Exclusive"
    assert [consumer["availablePermits"] for consumer in subscription["consumers"]] == [0]
    assert holds.state(topic).may_be_lost is None


def test_a_hold_survives_the_unloading_of_its_topic(
    standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str
) -> None:
    before = holds.hold(topic).result(WAIT_S)
    positions = publish(standalone, topic, 30)
    holds.acknowledge(topic, positions[4]).result(WAIT_S)
    standalone.admin("PUT", f"{path_of(topic)}/unload")
    state = held_again(holds, topic, before)
    assert state.acknowledged == positions[4]
    assert state.mark_delete == positions[4]
    assert not state.recreated
    assert state.may_be_lost is None
    holds.acknowledge(topic, positions[9]).result(WAIT_S)
    until(lambda: holds.last_message_id(topic).result(WAIT_S).mark_delete == positions[9], "not acknowledged")


def test_holds_of_many_topics_survive_a_restart_of_the_broker(
    standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str
) -> None:
    topics = [f"{topic}-{number}" for number in range(10)]
    for each in topics:
        standalone.admin("PUT", path_of(each))
    before = {each: future.result(WAIT_S) for each, future in [(each, holds.hold(each)) for each in topics]}
    positions = publish(standalone, topics[0], 50)
    holds.acknowledge(topics[0], positions[30]).result(WAIT_S)
    standalone.stop()
    until(lambda: not any(holds.state(each).held for each in topics), "the lost connection is not noticed")
    assert holds.state(topics[0]).last_error is not None
    standalone.start()
    for each in topics:
        state = held_again(holds, each, before[each])
        assert state.may_be_lost is None
    until(lambda: positions[0].ledger_id not in trim(standalone, topics[0]), "acknowledged entries are not trimmed")
    assert positions[31].ledger_id in trim(standalone, topics[0])


def test_unsubscribe_lets_the_cluster_trim(standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str) -> None:
    holds.hold(topic).result(WAIT_S)
    positions = publish(standalone, topic, 50)
    assert positions[0].ledger_id in trim(standalone, topic)
    holds.unsubscribe(topic).result(WAIT_S)
    assert standalone.admin("GET", f"{path_of(topic)}/subscriptions") == []
    until(lambda: positions[0].ledger_id not in trim(standalone, topic), "nothing is trimmed")


def test_a_standby_takes_over_when_the_holder_releases(
    standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str
) -> None:
    holds.hold(topic).result(WAIT_S)
    with SubscriptionHolds(PulsarAddress(standalone.service_url)) as standby:
        waiting = standby.hold(topic)
        error = until(lambda: standby.state(topic).last_error, "the standby is not refused")
        assert isinstance(error, SubscriptionBusy)
        holds.release(topic).result(WAIT_S)
        assert waiting.result(WAIT_S).held


# --- behind our back ------------------------------------------------------------------------------------------------


def test_a_subscription_deleted_while_nobody_held_it_is_noticed_with_the_range(
    standalone: PulsarStandalone, topic: str
) -> None:
    address = PulsarAddress(standalone.service_url)
    with SubscriptionHolds(address) as first:
        first.hold(topic).result(WAIT_S)
        positions = publish(standalone, topic, 70)
        first.acknowledge(topic, positions[5]).result(WAIT_S)
        first.release(topic).result(WAIT_S)
    standalone.admin("DELETE", f"{path_of(topic)}/subscription/afterglow")
    until(lambda: positions[25].ledger_id not in trim(standalone, topic), "nothing is trimmed")
    with SubscriptionHolds(address) as second:
        state = second.hold(topic, acknowledged=positions[5]).result(WAIT_S)
    assert state.recreated
    assert state.may_be_lost is not None
    assert state.may_be_lost.after == positions[5]
    assert state.may_be_lost.through > positions[25]


def test_a_subscription_deleted_while_it_is_held_is_created_again_and_noticed(
    standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str
) -> None:
    before = holds.hold(topic).result(WAIT_S)
    positions = publish(standalone, topic, 30)
    holds.acknowledge(topic, positions[5]).result(WAIT_S)
    standalone.admin("DELETE", f"{path_of(topic)}/subscription/afterglow?force=true")
    state = held_again(holds, topic, before)
    assert state.recreated
    assert standalone.admin("GET", f"{path_of(topic)}/subscriptions") == ["afterglow"]


def test_a_deleted_topic_is_reported_and_not_created_again(
    standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str
) -> None:
    holds.hold(topic).result(WAIT_S)
    standalone.admin("DELETE", f"{path_of(topic)}?force=true")
    until(lambda: isinstance(holds.state(topic).last_error, TopicMissing), "not reported")
    assert topic not in standalone.admin("GET", f"persistent/{TopicName.parse(topic).namespace}")
    with pytest.raises(TopicMissing, match="the topic was deleted"):
        holds.hold(topic).result(WAIT_S)


# --- policies of the cluster -----------------------------------------------------------------------------------------


def test_message_ttl_spares_system_cursors_and_is_noticed_for_others(
    standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str
) -> None:
    with SubscriptionHolds(PulsarAddress(standalone.service_url), "spared") as spared:
        holds.hold(topic).result(WAIT_S)
        begin = spared.hold(topic).result(WAIT_S).mark_delete
        assert begin is not None
        holds.acknowledge(topic, publish(standalone, topic, 1)[0]).result(WAIT_S)
        positions = publish(standalone, topic, 20)
        standalone.admin("POST", f"{namespace_of(topic)}/messageTTL", 1)

        def expired() -> bool:
            holds.last_message_id(topic).result(WAIT_S)
            return holds.state(topic).may_be_lost is not None

        until(expired, "nothing expires")
        lost = holds.state(topic).may_be_lost
        assert lost is not None
        assert lost.through <= positions[-1]
        assert not holds.state(topic).recreated
        assert spared.last_message_id(topic).result(WAIT_S).mark_delete == begin
        assert spared.state(topic).may_be_lost is None
    (settings,) = SettingsReader(client_of(standalone)).read([TopicName.parse(topic)])
    assert [risk.policy for risk in check(settings, "afterglow")] == ["messageTTL"]
    assert check(settings, "spared") == ()


def test_a_stopped_attach_loses_its_subscription_to_inactivity_expiry_even_as_a_system_cursor(
    standalone: PulsarStandalone, topic: str
) -> None:
    standalone.admin("POST", f"{namespace_of(topic)}/subscriptionExpirationTime", 1)
    (settings,) = SettingsReader(client_of(standalone)).read([TopicName.parse(topic)])
    (risk,) = check(settings, "spared")
    assert risk.consequence is Consequence.DELETES_SUBSCRIPTION
    assert "apache/pulsar#26149" in risk.detail
    with SubscriptionHolds(PulsarAddress(standalone.service_url), "spared") as holds:
        holds.hold(topic).result(WAIT_S)
        holds.release(topic).result(WAIT_S)
    until(lambda: standalone.admin("GET", f"{path_of(topic)}/subscriptions") == [], "the subscription does not expire")


def test_a_backlog_quota_that_evicts_is_a_risk_and_its_eviction_is_noticed(
    standalone: PulsarStandalone, holds: SubscriptionHolds, topic: str
) -> None:
    quota = {"limitSize": 2000, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    standalone.admin("POST", f"{namespace_of(topic)}/backlogQuota?backlogQuotaType=destination_storage", quota)
    (settings,) = SettingsReader(client_of(standalone)).read([TopicName.parse(topic)])
    (risk,) = check(settings, "afterglow")
    assert (risk.policy, risk.consequence) == ("backlogQuota[destination_storage]", Consequence.DROPS_ENTRIES)
    assert release_bytes(settings.backlog_quotas) == 1400
    begin = holds.hold(topic).result(WAIT_S).mark_delete
    first = publish(standalone, topic, 2)[0]
    holds.acknowledge(topic, first).result(WAIT_S)
    publish(standalone, topic, 60)

    def evicted() -> bool:
        holds.last_message_id(topic).result(WAIT_S)
        return holds.state(topic).may_be_lost is not None

    until(evicted, "nothing is evicted")
    lost = holds.state(topic).may_be_lost
    assert begin is not None
    assert lost is not None
    assert lost.after == first
    assert holds.state(topic).held


def test_policies_of_a_real_cluster_are_read_with_their_origins(standalone: PulsarStandalone, topic: str) -> None:
    reader = SettingsReader(client_of(standalone))
    (settings,) = reader.read([TopicName.parse(topic)])
    assert settings.broker.version == "4.0.8"
    assert settings.broker.system_cursors == frozenset({"audit", "spared"})
    assert settings.ttl_s == Setting(0, "broker")
    assert settings.backlog_quotas == ()
    assert settings.subscription_expiration_minutes == Setting(0, "broker")
    assert settings.retention == Setting(Retention(0, 0), "broker")
    assert settings.max_subscriptions == Setting(0, "broker")
    assert settings.subscriptions == ()
    assert settings.auto_creation == Setting(value=True, origin="broker")
    assert check(settings, "afterglow") == ()
    namespace = namespace_of(topic)
    standalone.admin("POST", f"{namespace}/maxSubscriptionsPerTopic", 3)
    standalone.admin("POST", f"{namespace}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 6})
    standalone.admin("POST", f"{namespace}/subscriptionAuthMode", "Prefix")
    aged = {"limitSize": -1, "limitTime": 3600, "policy": "producer_request_hold"}
    standalone.admin("POST", f"{namespace}/backlogQuota?backlogQuotaType=message_age", aged)
    standalone.admin("POST", f"{path_of(topic)}/messageTTL?messageTTL=77")
    topic_quota = {"limitSize": 1000, "limitTime": -1, "policy": "producer_exception"}
    standalone.admin("POST", f"{path_of(topic)}/backlogQuota?backlogQuotaType=destination_storage", topic_quota)

    def changed() -> Any:
        (found,) = SettingsReader(client_of(standalone)).read([TopicName.parse(topic)])
        quotas = () if isinstance(found.backlog_quotas, Unknown) else found.backlog_quotas
        is_changed = len(quotas) == 2 and found.ttl_s == Setting(77, "topic")
        return found if is_changed else None

    settings = until(changed, "topic policies are not applied")
    origin = f"namespace {TopicName.parse(topic).namespace}"
    assert settings.max_subscriptions == Setting(3, origin)
    assert settings.retention == Setting(Retention(5, 6), origin)
    assert settings.auth_mode == Setting("Prefix", origin)
    assert [each.origin for each in settings.backlog_quotas] == ["topic", origin]
    risks = check(settings, "afterglow")
    assert [risk.policy for risk in risks] == [
        "messageTTL",
        "backlogQuota[destination_storage]",
        "backlogQuota[message_age]",
    ], "without authorization the auth mode does not apply"
    assert release_bytes(settings.backlog_quotas) == 700


def client_of(standalone: PulsarStandalone, token: str | None = None) -> AdminClient:
    return AdminClient(standalone.admin_url, ClusterCredentials(token))


# --- tokens ----------------------------------------------------------------------------------------------------------


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarStandalone]:
    """A Pulsar that asks for tokens; the role ``tenant`` administers the tenant ``public``."""
    directory = tmp_path_factory.mktemp("guarded")
    key = directory / "secret.key"
    key.write_bytes(SECRET)
    settings = {
        **SETTINGS,
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"file://{key}",
        "superUserRoles": "admin",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token('admin')}",
    }
    try:
        with PulsarStandalone(directory, settings, token=token("admin")) as started:
            started.admin("POST", "tenants/public", {"adminRoles": ["tenant"], "allowedClusters": ["standalone"]})
            for role in ("consumer", "afterglow"):
                started.admin("POST", f"namespaces/public/default/permissions/{role}", ["consume"])
            started.admin("PUT", "persistent/public/default/t")
            yield started
    except MissingDependency as error:
        pytest.skip(str(error))


def test_tokens_decide_about_holds_and_about_what_can_be_checked(guarded: PulsarStandalone) -> None:
    def hold(role_token: str | None, subscription: str = "afterglow") -> HoldState:
        address = PulsarAddress(guarded.service_url, role_token)
        with SubscriptionHolds(address, subscription) as holds:
            return holds.hold("t").result(WAIT_S)

    with pytest.raises(AccessDenied, match=r"persistent://public/default/t.*--token"):
        hold(jwt.encode({"sub": "consumer"}, b"x" * 32, algorithm="HS256"))
    with pytest.raises(AccessDenied, match="--token"):
        hold(None)
    with pytest.raises(AccessDenied, match="consume"):
        hold(token("stranger"))
    assert hold(token("consumer")).held

    name = TopicName.parse("t")
    (everything,) = SettingsReader(client_of(guarded, token("admin"))).read([name])
    assert check(everything, "afterglow", role="admin") == ()
    (of_tenant,) = SettingsReader(client_of(guarded, token("tenant"))).read([name])
    assert isinstance(of_tenant.broker.runtime, Unknown)
    risks = {risk.policy: risk for risk in check(of_tenant, "afterglow", role="tenant")}
    assert {risk.consequence for risk in risks.values()} == {Consequence.UNKNOWN}
    assert "superuser" in risks["messageTTL"].fix
    guarded.admin("POST", "namespaces/public/default/messageTTL", 0)
    guarded.admin("POST", "namespaces/public/default/subscriptionExpirationTime", 0)
    (explicit,) = SettingsReader(client_of(guarded, token("tenant"))).read([name])
    left = {risk.policy for risk in check(explicit, "afterglow", role="tenant")}
    assert left == set(risks) - {"messageTTL", "subscriptionExpirationTimeMinutes"}
    (nothing,) = SettingsReader(client_of(guarded, token("consumer"))).read([name])
    assert {risk.consequence for risk in check(nothing, "afterglow", role="consumer")} == {Consequence.UNKNOWN}


def test_a_subscription_name_must_begin_with_the_role_where_the_cluster_says_so(guarded: PulsarStandalone) -> None:
    guarded.admin("POST", "namespaces/public/default/subscriptionAuthMode", "Prefix")
    try:
        (settings,) = SettingsReader(client_of(guarded, token("admin"))).read([TopicName.parse("t")])
        (risk,) = check(settings, "afterglow", role="consumer")
        assert (risk.policy, risk.consequence) == ("subscription_auth_mode", Consequence.REFUSES_SUBSCRIPTION)
        address = PulsarAddress(guarded.service_url, token("consumer"))
        with SubscriptionHolds(address, "consumer-afterglow") as holds:
            assert holds.hold("t").result(WAIT_S).held
        with SubscriptionHolds(address, "afterglow-2") as holds, pytest.raises(AccessDenied, match="begin with"):
            holds.hold("t").result(WAIT_S)
    finally:
        guarded.admin("POST", "namespaces/public/default/subscriptionAuthMode", "None")
