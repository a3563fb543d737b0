"""Records of one cluster are never continued with another one."""

from __future__ import annotations

from typing import Final

import pytest
from tests.support.faults import Fault, FaultRule, FaultyMetadataStore

from afterglow.attach.cluster_instance import check_instance, read_instance, record_instance
from afterglow.errors import ConfigError
from afterglow.metadata.memory import MemoryMetadataStore
from afterglow.metadata.paths import AfterglowPaths
from afterglow.metadata.store import MUST_NOT_EXIST

PATHS: Final = AfterglowPaths("standalone")
ADDRESS: Final = "sqlite:meta.db"


def cluster(instance: str | None) -> MemoryMetadataStore:
    store = MemoryMetadataStore()
    if instance is not None:
        store.put("/ledgers/INSTANCEID", instance.encode(), MUST_NOT_EXIST)
    return store


def test_the_instance_of_a_cluster_is_that_of_its_bookkeeper() -> None:
    assert read_instance(cluster("0b5c")) == "0b5c"
    assert not read_instance(cluster(None))


def test_records_of_another_cluster_of_the_same_name_are_refused() -> None:
    metadata = MemoryMetadataStore()
    check_instance(metadata, PATHS, "one", ADDRESS)
    record_instance(metadata, PATHS, "one")
    check_instance(metadata, PATHS, "one", ADDRESS)
    for other in ("two", ""):
        with pytest.raises(ConfigError, match="another cluster of the name standalone"):
            check_instance(metadata, PATHS, other, ADDRESS)
    check_instance(metadata, AfterglowPaths("east"), "two", ADDRESS)


def test_the_first_attachment_decides() -> None:
    metadata = MemoryMetadataStore()
    record_instance(metadata, PATHS, "one")
    record_instance(metadata, PATHS, "two")
    check_instance(metadata, PATHS, "one", ADDRESS)


def test_a_check_writes_nothing() -> None:
    metadata = MemoryMetadataStore()
    check_instance(metadata, PATHS, "one", ADDRESS)
    assert metadata.children("/") == ()


def test_a_cluster_without_an_instance_is_recorded_once_it_has_one() -> None:
    metadata = MemoryMetadataStore()
    record_instance(metadata, PATHS, "")
    check_instance(metadata, PATHS, "one", ADDRESS)
    record_instance(metadata, PATHS, "one")
    with pytest.raises(ConfigError):
        check_instance(metadata, PATHS, "two", ADDRESS)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.ERROR_AFTER])
def test_an_instance_is_recorded_whatever_the_outcome_of_the_first_attempt(fault: Fault) -> None:
    metadata = MemoryMetadataStore()
    record_instance(FaultyMetadataStore(metadata, [FaultRule(fault, frozenset({"put"}))]), PATHS, "one")
    with pytest.raises(ConfigError):
        check_instance(metadata, PATHS, "two", ADDRESS)
