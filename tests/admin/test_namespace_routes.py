from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.support.raw_client import ErrorAnswer, RawClient

from afterglow.errors import HotLogUnavailable
from afterglow.metadata.names import NamespaceName

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.conftest import Admin

NAMESPACE = "namespaces/public/default"


def topic(name: str) -> str:
    return f"persistent://public/default/{name}"


def backlogs(admin: Admin) -> dict[str, int]:
    """Entries that are not acknowledged, by topic and subscription."""
    return {
        f"{name.local_name} {found.name}": found.cursor.backlog
        for name, topic in sorted(admin.service.open_topics.items(), key=str)
        for found in topic.subscriptions.values()
    }


def left(admin: Admin) -> list[str]:
    """What is stored of the namespace or anything in it, but for parents without a value of their own."""
    topics = admin.service.catalog.topics(NamespaceName("public", "default"))
    return [path for path, value in admin.state().items() if value and "public/default" in path] + list(
        map(str, topics)
    )


@pytest.fixture
def filled(admin: Admin) -> Admin:
    """Two topics with two subscriptions each, which have something to read."""
    for name in ("t", "u"):
        admin.do("PUT", f"persistent/public/default/{name}")
        for subscription in ("a", "b"):
            admin.do("PUT", f"persistent/public/default/{name}/subscription/{subscription}")
        admin.write_entries(3, f"public/default/persistent/{name}")
    assert set(backlogs(admin).values()) == {3}
    return admin


def test_a_namespace_is_unloaded(filled: Admin) -> None:
    filled.do("PUT", "namespaces/public/other")
    filled.do("PUT", "persistent/public/other/t")
    filled.get("persistent/public/other/t/stats")
    assert "elsewhere" in filled.refused(412, "PUT", f"{NAMESPACE}/unload?destinationBroker=elsewhere:8080")
    filled.refused(404, "PUT", "namespaces/public/nowhere/unload")
    filled.do("PUT", f"{NAMESPACE}/unload?destinationBroker=http://127.0.0.1:{filled.port}")
    assert [str(name) for name in filled.service.open_topics] == ["persistent://public/other/t"]


def test_properties_are_kept_for_their_users(admin: Admin) -> None:
    assert admin.get(f"{NAMESPACE}/properties") == {}
    admin.do("PUT", f"{NAMESPACE}/properties", {"a": "1", "b": "2"})
    admin.do("PUT", f"{NAMESPACE}/properties", {"b": "3"})
    assert admin.get(f"{NAMESPACE}/properties") == {"a": "1", "b": "3"}
    admin.refused(400, "PUT", f"{NAMESPACE}/properties", {"a": 1})
    admin.refused(400, "PUT", f"{NAMESPACE}/properties")
    assert admin.get(NAMESPACE)["properties"] == {"a": "1", "b": "3"}
    admin.do("DELETE", f"{NAMESPACE}/properties")
    assert admin.get(f"{NAMESPACE}/properties") == {}


def test_permissions_are_not_granted_where_none_are_enforced(admin: Admin) -> None:
    before = admin.state()
    assert admin.get(f"{NAMESPACE}/permissions") == {}
    assert "not enforced" in admin.refused(412, "POST", f"{NAMESPACE}/permissions/dev", ["produce"])
    admin.refused(412, "DELETE", f"{NAMESPACE}/permissions/dev")
    assert admin.get(f"{NAMESPACE}/permissions/subscription") == {}
    admin.refused(412, "POST", f"{NAMESPACE}/permissions/subscription/s", ["dev"])
    assert admin.state() == before


@pytest.mark.parametrize(("mode", "count"), [("PERSISTENT", 1), ("NON_PERSISTENT", 0), ("ALL", 1)])
def test_topics_are_listed_by_kind(admin: Admin, mode: str, count: int) -> None:
    admin.do("PUT", "persistent/public/default/t")
    assert len(admin.get(f"{NAMESPACE}/topics?mode={mode}&includeSystemTopic=true")) == count


def test_forced_deletion_needs_a_setting(filled: Admin) -> None:
    before = filled.state()
    assert "forceDeleteNamespaceAllowed" in filled.refused(405, "DELETE", f"{NAMESPACE}?force=true")
    assert "forceDeleteTenantAllowed" in filled.refused(405, "DELETE", "tenants/public?force=true")
    assert filled.state() == before


def test_a_namespace_is_deleted_by_force_with_its_topics(start: Callable[..., Admin]) -> None:
    admin = start(force_delete_namespace_allowed=True, force_delete_tenant_allowed=True)
    admin.do("PUT", "persistent/public/default/t")
    admin.do("PUT", "persistent/public/default/p/partitions", 2)
    admin.do("POST", "persistent/public/default/p/maxProducers", 2)
    admin.write_entries(1)
    admin.do("DELETE", f"{NAMESPACE}?force=true")
    assert admin.get("namespaces/public") == []
    admin.refused(404, "DELETE", f"{NAMESPACE}?force=true")
    admin.do("PUT", NAMESPACE)
    assert admin.get("persistent/public/default") == admin.get("persistent/public/default/partitioned") == []
    admin.do("PUT", "persistent/public/default/p")
    admin.do("GET", "persistent/public/default/p/maxProducers")
    admin.do("DELETE", "tenants/public?force=true")
    assert admin.get("tenants") == []


def test_reconnecting_clients_create_nothing_in_a_namespace_that_is_being_deleted(start: Callable[..., Admin]) -> None:
    admin = start(force_delete_namespace_allowed=True)
    for name in ("t", "u"):
        admin.do("PUT", f"persistent/public/default/{name}")
        admin.write_entries(1, f"public/default/persistent/{name}")
    admin.do("PUT", "persistent/public/default/p/partitions", 2)
    # The topic is disconnected and about to go when its producer comes back.
    with (
        ThreadPoolExecutor(1) as pool,
        RawClient(admin.service.service_url, timeout_s=5) as client,
        admin.held("/persistent/t") as hold,
    ):
        client.open_producer(topic("t"))
        deleting = pool.submit(admin.call, "DELETE", f"{NAMESPACE}?force=true")
        hold.reached()
        for name in ("t", "new", "p-partition-7"):
            with pytest.raises(ErrorAnswer, match="being deleted"):
                client.open_producer(topic(name))
        for path, body in (("new", None), ("new/partitions", 2)):
            assert "being deleted" in admin.refused(404, "PUT", f"persistent/public/default/{path}", body)
        assert "being deleted" in admin.refused(404, "PUT", "persistent/public/default/new/subscription/s")
        assert admin.get(NAMESPACE)["deleted"] is True
        hold.end()
        assert deleting.result().status == 204
        with pytest.raises(ErrorAnswer, match="create it first"):
            client.open_producer(topic("t"))
    assert admin.get("namespaces/public") == []
    assert left(admin) == []


def test_a_topic_created_while_its_namespace_is_deleted_is_deleted_too(start: Callable[..., Admin]) -> None:
    admin = start(force_delete_namespace_allowed=True)
    with ThreadPoolExecutor(2) as pool, admin.held("/persistent/new") as hold:
        making = pool.submit(admin.call, "PUT", "persistent/public/default/new")
        hold.reached()
        marked = threading.Event()
        admin.service.policies.on_change(lambda _namespace: marked.set())
        deleting = pool.submit(admin.call, "DELETE", f"{NAMESPACE}?force=true")
        assert marked.wait(30)
        hold.end()
        assert making.result().status == 204
        assert deleting.result().status == 204
    assert left(admin) == []


def test_a_failed_forced_deletion_can_be_retried(start: Callable[..., Admin], monkeypatch: pytest.MonkeyPatch) -> None:
    admin = start(force_delete_namespace_allowed=True)
    admin.do("PUT", "persistent/public/default/p/partitions", 2)
    admin.do("POST", "persistent/public/default/p/maxProducers", 2)

    def fail(name: str) -> None:
        raise HotLogUnavailable(f"{name} cannot be deleted now")

    with monkeypatch.context() as patch:
        patch.setattr(admin.service.store, "delete", fail)
        admin.refused(503, "DELETE", f"{NAMESPACE}?force=true")
    # Data that is still there is still what it was.
    assert admin.get("persistent/public/default/p/partitions")["partitions"] == 2
    assert admin.get("persistent/public/default/p/maxProducers") == 2
    admin.refused(404, "PUT", "persistent/public/default/new")
    admin.do("DELETE", f"{NAMESPACE}?force=true")
    assert left(admin) == []
