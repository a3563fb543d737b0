from __future__ import annotations

from typing import TYPE_CHECKING

import pulsar
import pytest

if TYPE_CHECKING:
    from tests.admin.conftest import Admin

NAMESPACE = "persistent/public/default"
TOPIC = f"{NAMESPACE}/t"
SUBSCRIPTION = f"{TOPIC}/subscription/s"
LARGE = "X" * 40_000


def test_properties_of_a_topic_are_set_shown_and_removed(admin: Admin) -> None:
    admin.do("PUT", TOPIC, {"a": "1"})
    assert admin.get(f"{TOPIC}/properties") == {"a": "1"}
    admin.do("PUT", f"{TOPIC}/properties", {"b": "2", "a": "3"})
    admin.write_ledgers(1)
    assert admin.get(f"{TOPIC}/properties") == {"a": "3", "b": "2"}
    admin.do("DELETE", f"{TOPIC}/properties?key=a")
    admin.do("DELETE", f"{TOPIC}/properties?key=a")
    admin.do("PUT", f"{TOPIC}/unload")
    assert admin.get(f"{TOPIC}/properties") == {"b": "2"}
    before = admin.state()
    admin.refused(412, "PUT", f"{TOPIC}/properties", {"index": "5"})
    admin.refused(412, "DELETE", f"{TOPIC}/properties?key=afterglow.owner-epoch")
    admin.refused(405, "PUT", f"{TOPIC}/properties", {"PULSAR.SHADOW_SOURCE": "persistent://public/default/other"})
    admin.refused(405, "PUT", f"{NAMESPACE}/shadow", {"PULSAR.SHADOW_SOURCE": "persistent://public/default/other"})
    admin.refused(400, "PUT", f"{TOPIC}/properties", {"a": 1})
    admin.refused(400, "DELETE", f"{TOPIC}/properties")
    for method, path in (("GET", "properties"), ("PUT", "properties"), ("DELETE", "properties?key=a")):
        admin.refused(404, method, f"{NAMESPACE}/nothing/{path}")
    assert admin.state() == before


def test_a_partitioned_topic_has_properties_of_its_own(admin: Admin) -> None:
    path = f"{NAMESPACE}/p"
    admin.do("PUT", f"{path}/partitions", {"partitions": 1, "properties": {"a": "1"}})
    assert admin.get(f"{path}/partitions")["properties"] == {"a": "1"}
    admin.do("PUT", f"{path}/properties", {"b": "2"})
    admin.do("DELETE", f"{path}/properties?key=a")
    admin.do("POST", f"{path}/partitions", 2)
    assert admin.get(f"{path}/properties") == {"b": "2"}
    assert admin.get(f"{path}-partition-0/properties") == {}
    admin.refused(400, "POST", f"{path}/partitions", {"partitions": 3, "properties": {"a": "1"}})
    assert admin.get(f"{path}/partitions") == {"partitions": 2, "deleted": False, "properties": {"b": "2"}}


def test_properties_of_a_subscription_are_replaced_on_all_partitions(admin: Admin) -> None:
    path = f"{NAMESPACE}/p"
    admin.do("PUT", f"{path}/partitions", 2)
    location = {"ledgerId": -1, "entryId": -1, "properties": {"team": "ops", "since": "may"}}
    admin.do("PUT", f"{path}/subscription/s", location)
    assert admin.get(f"{path}/subscription/s/properties") == {"team": "ops", "since": "may"}
    admin.do("PUT", f"{path}/subscription/s/properties", {"team": "data"})
    admin.do("PUT", f"{path}/unload")
    for name in ("p", "p-partition-0", "p-partition-1"):
        assert admin.get(f"{NAMESPACE}/{name}/subscription/s/properties") == {"team": "data"}
    admin.refused(400, "PUT", f"{path}/subscription/s/properties", {"team": 1})
    admin.refused(404, "GET", f"{path}/subscription/absent/properties")
    assert admin.get(f"{path}/subscription/s/properties") == {"team": "data"}


@pytest.mark.parametrize("partitions", [0, 2])
def test_properties_leave_space_for_the_ledger_list(admin: Admin, partitions: int) -> None:
    if partitions:
        admin.do("PUT", f"{TOPIC}/partitions", {"partitions": partitions, "properties": {"a": LARGE}})
    else:
        admin.do("PUT", TOPIC, {"a": LARGE})
    admin.do("PUT", f"{TOPIC}/properties", {"a": LARGE.lower()})
    admin.get(f"{TOPIC}/properties")
    before = admin.state()
    assert "limit of 65536" in admin.refused(412, "PUT", f"{TOPIC}/properties", {"b": LARGE})
    assert admin.state() == before
    admin.do("DELETE", f"{TOPIC}/properties?key=a")
    admin.do("PUT", f"{TOPIC}/properties", {"b": LARGE})
    assert admin.get(f"{TOPIC}/properties") == {"b": LARGE}


def test_properties_that_are_too_large_create_nothing(admin: Admin) -> None:
    before, given = admin.state(), {"a": LARGE, "b": LARGE}
    admin.refused(412, "PUT", TOPIC, given)
    admin.refused(412, "PUT", f"{TOPIC}/partitions", {"partitions": 2, "properties": given})
    admin.refused(412, "PUT", f"{TOPIC}/subscription/s", {"ledgerId": -1, "entryId": -1, "properties": given})
    assert admin.state() == before


def test_properties_of_a_subscription_are_bounded(admin: Admin) -> None:
    admin.do("PUT", TOPIC)
    admin.do("PUT", SUBSCRIPTION)
    admin.do("PUT", f"{SUBSCRIPTION}/properties", {"a": LARGE})
    admin.refused(412, "PUT", f"{SUBSCRIPTION}/properties", {"a": LARGE, "b": LARGE})
    assert admin.get(f"{SUBSCRIPTION}/properties") == {"a": LARGE}


def test_the_subscription_of_a_reader_has_no_properties(admin: Admin) -> None:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_reader("t", pulsar.MessageId.earliest)
    (name,) = admin.get(f"{TOPIC}/subscriptions")
    assert admin.get(f"{TOPIC}/subscription/{name}/properties") == {}
    admin.refused(405, "PUT", f"{TOPIC}/subscription/{name}/properties", {"a": "b"})
    client.close()
