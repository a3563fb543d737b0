from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from afterglow.errors import InvalidName
from afterglow.metadata.checks import check_path
from afterglow.metadata.names import NamespaceName, TopicName
from afterglow.metadata.paths import (
    AfterglowPaths,
    cursor_of,
    cursor_path,
    managed_ledger_path,
    topic_of,
    topics_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable

UID = UUID("f3b1c2d4-0000-4000-8000-00000000abcd")
TOPIC = TopicName.parse("acme/sales/orders for é")
LEDGER = TOPIC.managed_ledger_name


def test_pulsars_own_paths() -> None:
    assert managed_ledger_path(LEDGER) == "/managed-ledgers/acme/sales/persistent/orders+for+%C3%A9"
    assert cursor_path(LEDGER, "my sub/1") == f"{managed_ledger_path(LEDGER)}/my+sub%2F1"
    assert topics_path(NamespaceName("acme", "sales")) == "/managed-ledgers/acme/sales/persistent"


def test_pulsars_paths_lead_back_to_names() -> None:
    assert topic_of(managed_ledger_path(LEDGER)) == TOPIC
    assert cursor_of(cursor_path(LEDGER, "my sub/1")) == (TOPIC, "my sub/1")
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


def test_our_paths_lead_back_to_topic_and_uuid() -> None:
    ours = AfterglowPaths()
    assert ours.parse_segment(ours.segment(LEDGER, UID)) == (TOPIC, UID)
    assert ours.parse_upload(ours.upload(LEDGER, UID)) == (TOPIC, UID)
    assert ours.parse_delete(ours.delete(LEDGER, UID)) == (TOPIC, UID)


@pytest.mark.parametrize(
    "path",
    [
        AfterglowPaths().segments(LEDGER),
        AfterglowPaths().segment(LEDGER, UID).upper(),
        AfterglowPaths().segment(LEDGER, UID).replace("-", ""),
        AfterglowPaths().upload(LEDGER, UID),
        AfterglowPaths("other").segment(LEDGER, UID),
        f"/afterglow/standalone/segments/{UID}",
    ],
)
def test_what_is_no_segment_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        AfterglowPaths().parse_segment(path)


@pytest.mark.parametrize("parse", [topic_of, cursor_of])
@pytest.mark.parametrize("path", ["/managed-ledgers", "/other/a/b/persistent/c", "/managed-ledgers/a/b/c", ""])
def test_what_is_no_path_of_pulsars_is_refused(parse: Callable[[str], object], path: str) -> None:
    with pytest.raises(InvalidName):
        parse(path)


@pytest.mark.parametrize("cluster", ["", "a/b", "..", "a b"])
def test_a_cluster_name_that_would_leave_the_root_is_refused(cluster: str) -> None:
    with pytest.raises(InvalidName):
        AfterglowPaths(cluster)
