from __future__ import annotations

from afterglow.ledger.topic_policies import effective, of_scope, with_scope


def test_a_policy_of_the_cluster_wins_over_one_for_all_clusters() -> None:
    stored = with_scope({"a": 1}, {"a": 2, "b": 3}, is_global=True)
    assert effective(stored) == {"a": 1, "b": 3}
    assert of_scope(stored, is_global=False) == {"a": 1}
    assert of_scope(stored, is_global=True) == {"a": 2, "b": 3}


def test_a_scope_is_changed_alone() -> None:
    stored = with_scope(with_scope({}, {"a": 1}, is_global=True), {"a": 2}, is_global=False)
    assert of_scope(with_scope(stored, {}, is_global=False), is_global=True) == {"a": 1}
    assert with_scope(with_scope(stored, {}, is_global=False), {}, is_global=True) == {}
