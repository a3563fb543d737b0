from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from afterglow.offload.agenda import Agenda


def test_the_earliest_date_of_a_name_counts() -> None:
    agenda = Agenda()
    agenda.put("a", 10)
    agenda.put("a", 5)
    agenda.put("a", 7)
    assert agenda.take_due(4) == []
    assert agenda.take_due(5) == ["a"]
    assert agenda.take_due(100) == []


def test_a_date_that_was_struck_off_does_not_come() -> None:
    agenda = Agenda()
    agenda.put("a", 5)
    agenda.strike("a")
    agenda.strike("never there")
    assert agenda.take_due(100) == []
    agenda.put("a", 50)
    assert agenda.take_due(49) == []
    assert agenda.take_due(50) == ["a"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 20))
        | st.tuples(st.just("strike"), st.sampled_from("abc"))
        | st.tuples(st.just("take"), st.integers(0, 20))
    )
)
def test_names_are_due_when_a_plain_dictionary_says_so(steps: list[tuple[str, object]]) -> None:
    agenda = Agenda()
    model: dict[str, int] = {}
    for step, value in steps:
        if step == "take":
            assert isinstance(value, int)
            due = {name for name, at in model.items() if at <= value}
            assert set(agenda.take_due(value)) == due
            model = {name: at for name, at in model.items() if name not in due}
        elif step == "strike":
            agenda.strike(str(value))
            model.pop(str(value), None)
        else:
            assert isinstance(value, int)
            agenda.put(step, value)
            model[step] = min(value, model.get(step, value))
        assert len(agenda) == len(model)
