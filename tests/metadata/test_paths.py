from __future__ import annotations

from uuid import UUID

import pytest

from afterglow.errors import InvalidName
from afterglow.metadata.names import NamespaceName, TopicName
from afterglow.metadata.paths import (
    AfterglowPaths,
    cursor_path,
    managed_ledger_path,
    topic_of,
    topics_path,
)
from afterglow.metadata.store import check_path

UID = UUID("f3b1c2d4-0000-4000-8000-00000000abcd")
TOPIC = TopicName.parse("acme/sales/orders for é")
LEDGER = TOPIC.managed_ledger_name


def test_pulsars_own_paths() -> None:
    assert managed_ledger_path(LEDGER) == "/managed-ledgers/acme/sales/persistent/orders+for+%C3%A9"
    assert cursor_path(LEDGER, "my sub/1") == f"{managed_ledger_path(LEDGER)}/my+sub%2F1"
    assert topics_path(NamespaceName("acme", "sales")) == "/managed-ledgers/acme/sales/persistent"


def test_pulsars_paths_lead_back_to_names() -> None:
    assert topic_of(managed_ledger_path(LEDGER)) == TOPIC
    legacy = TopicName.parse("persistent://acme/eu/sales/a/b")
    assert topic_of(managed_ledger_path(legacy.managed_ledger_name)) == legacy


def test_our_paths_lie_below_one_root() -> None:
    ours = AfterglowPaths("eu-1")
    expected = {
        ours.managed_ledger(LEDGER): f"/afterglow/eu-1/managed-ledgers/{LEDGER}",
        ours.segment(LEDGER, UID): f"/afterglow/eu-1/segments/{LEDGER}/{UID}",
        ours.upload(LEDGER, UID): f"/afterglow/eu-1/uploads/{LEDGER}/{UID}",
        ours.delete(LEDGER, UID): f"/afterglow/eu-1/deletes/{LEDGER}/{UID}",
        ours.schemas(LEDGER): f"/afterglow/eu-1/schemas/{LEDGER}",
    }
    for path, text in expected.items():
        assert path == text
        assert check_path(path).startswith(f"{ours.root}/")
    assert ours.segment(LEDGER, UID).startswith(f"{ours.segments(LEDGER)}/")
    assert ours.upload(LEDGER, UID).startswith(f"{ours.uploads(LEDGER)}/")
    assert ours.delete(LEDGER, UID).startswith(f"{ours.deletes(LEDGER)}/")


def test_an_embedded_engine_is_the_cluster_standalone() -> None:
    assert AfterglowPaths().root == "/afterglow/standalone"


@pytest.mark.parametrize("path", ["/managed-ledgers", "/other/a/b/persistent/c", "/managed-ledgers/a/b/c", ""])
def test_a_path_that_is_not_a_topic_of_pulsars_is_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        topic_of(path)


@pytest.mark.parametrize("cluster", ["", "a/b", "..", "a b"])
def test_a_cluster_name_that_would_leave_the_root_is_refused(cluster: str) -> None:
    with pytest.raises(InvalidName):
        AfterglowPaths(cluster)
