"""The numbered steps of every commit path, each with the effect by which the world recognises it.

A step is known by what it changes: which node and how, which request to a tier, which change of a hot ledger. So the
production code carries no marks, and a step that is moved is still found. A test holds the table against the numbered
lists in the docstrings of the modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.sim.invariants import DELETING, OWNER_EPOCH, text_of, uuid_of

from afterglow.format.metadata_envelope import parse_managed_ledger
from afterglow.format.proto.afterglow_pb2 import DeleteRecord, UploadRecord
from afterglow.format.proto.managed_ledger_pb2 import ManagedLedgerInfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from afterglow.metadata.memory import MemoryMetadataStore

_DELETING_HOT: Final = "afterglow.trash"
_LEDGER: Final = "-ledger-"
_INDEX: Final = "-index"
_LISTS: Final = "/managed-ledgers/"
_DEPTH: Final = 5


class Effect:
    """A change that a process is about to make.

    Args:
        operation: ``put`` and ``remove`` of metadata, ``hot create`` and so on, or a request to a tier.
        target: The path, the key, or the id of a hot ledger.
        value: What is put.
        metadata: As it is before.
        by_writer: Of a hot ledger, whether the process that changes it is the one that wrote to it.
    """

    def __init__(
        self, operation: str, target: str, value: bytes | None, metadata: MemoryMetadataStore, *, by_writer: bool
    ) -> None:
        self.operation = operation
        self.target = target
        self.by_writer = by_writer
        self._value = value
        self._metadata = metadata

    @cached_property
    def kind(self) -> str:
        """Of a node of metadata: ``list``, ``cursor``, ``uploads``, ``segments``, ``deletes``, or empty."""
        path = self.target
        if path.startswith(_LISTS):
            return "list" if path.count("/") == _DEPTH else "cursor"
        root, _, rest = path.removeprefix("/afterglow/standalone/").partition("/")
        return root if root in {"uploads", "segments", "deletes"} and rest else ""

    @cached_property
    def old_value(self) -> bytes | None:
        """The node before."""
        found = self._metadata.get(self.target)
        return None if found is None else found.value

    @cached_property
    def old(self) -> ManagedLedgerInfo:
        """The ledger list before; an empty one if it was missing."""
        return ManagedLedgerInfo() if not self.old_value else parse_managed_ledger(self.old_value)

    @cached_property
    def new(self) -> ManagedLedgerInfo:
        """The list that is put."""
        return parse_managed_ledger(self._value or b"")

    @cached_property
    def old_upload(self) -> UploadRecord:
        """The upload record before; an empty one if it was missing."""
        return UploadRecord.FromString(self.old_value or b"")

    @cached_property
    def new_upload(self) -> UploadRecord:
        """The upload record that is put."""
        return UploadRecord.FromString(self._value or b"")

    @cached_property
    def reason(self) -> str:
        """Why an object is to be deleted, by the intent that is put."""
        return DeleteRecord.FromString(self._value or b"").reason

    @property
    def name(self) -> str:
        """Managed-ledger name of the topic whose record this is."""
        return self.target.split(f"/{self.kind}/", 1)[1].rpartition("/")[0]

    def has(self, kind: str) -> bool:
        """Whether there is a record of another kind with the same UUID."""
        return self._metadata.get(self.target.replace(f"/{self.kind}/", f"/{kind}/", 1)) is not None

    def listed(self) -> ManagedLedgerInfo:
        """The list of the topic whose record this is."""
        found = self._metadata.get(_LISTS + self.name)
        return ManagedLedgerInfo() if found is None else parse_managed_ledger(found.value)

    def lists(self) -> list[ManagedLedgerInfo]:
        """All lists."""
        found = []
        waiting = [_LISTS.rstrip("/")]
        while waiting:
            path = waiting.pop()
            if path.count("/") == _DEPTH and (node := self._metadata.get(path)) is not None:
                found.append(parse_managed_ledger(node.value))
            elif path.count("/") < _DEPTH:
                waiting += [f"{path}/{child}" for child in self._metadata.children(path)]
        return found


Matches: TypeAlias = "Callable[[Effect], bool]"


class Step(NamedTuple):
    """One effect of a numbered step."""

    where: str
    """Module below ``afterglow``, and the function whose docstring numbers it, if it is not the module's."""
    number: int
    what: str
    """Tells effects of one number apart."""
    matches: Matches

    @property
    def name(self) -> str:
        """For people and test ids."""
        return f"{self.where.removeprefix('offload.').removeprefix('ledger.')}-{self.number}-{self.what}"


@dataclass(frozen=True, slots=True)
class Interruption:
    """A crash at a step."""

    step: Step
    after: bool
    """Whether its effect had happened."""

    @property
    def name(self) -> str:
        """For people and test ids."""
        return f"{'after' if self.after else 'before'}-{self.step.name}"


# --- which effect it is -----------------------------------------------------------------------------------------------


def _segments(info: ManagedLedgerInfo, *, complete: bool) -> set[str]:
    """UUIDs of the segments that a list names, committed or not."""
    items = (item for row in info.ledgerInfo for item in row.offloadContext.offloadSegment)
    return {uuid_of(item) or "" for item in items if item.complete is complete}


def _own(info: ManagedLedgerInfo, *, complete: bool) -> dict[int, str]:
    """UUIDs of ledgers' own objects, committed or not, by ledger."""
    rows = [row for row in info.ledgerInfo if not row.offloadContext.offloadSegment]
    found = {row.ledgerId: uuid_of(row.offloadContext) for row in rows if row.offloadContext.complete is complete}
    return {ledger_id: uuid for ledger_id, uuid in found.items() if uuid is not None}


def _open(info: ManagedLedgerInfo) -> set[int]:
    return {row.ledgerId for row in info.ledgerInfo if not row.HasField("entries")}


def _ids(info: ManagedLedgerInfo) -> set[int]:
    return {row.ledgerId for row in info.ledgerInfo}


def _freed(info: ManagedLedgerInfo) -> set[int]:
    return {row.ledgerId for row in info.ledgerInfo if row.offloadContext.bookkeeperDeleted}


def _hot_deletes(info: ManagedLedgerInfo) -> set[str]:
    return set((text_of(info, _DELETING_HOT) or "").split(",")) - {""}


def _deleting(info: ManagedLedgerInfo) -> bool:
    return text_of(info, DELETING) is not None


def _list(test: Callable[[ManagedLedgerInfo, ManagedLedgerInfo], object]) -> Matches:
    """A change of a list, given as it is before and after."""
    return lambda effect: effect.operation == "put" and effect.kind == "list" and bool(test(effect.old, effect.new))


def _upload(test: Callable[[UploadRecord, UploadRecord], object]) -> Matches:
    """A change of an upload record, given as it is before and after."""
    return lambda effect: (
        effect.operation == "put" and effect.kind == "uploads" and bool(test(effect.old_upload, effect.new_upload))
    )


def _intent(*reasons: str) -> Matches:
    return lambda effect: (
        effect.operation == "put" and effect.kind == "deletes" and effect.reason.startswith(reasons or "")
    )


def _removal(kind: str, test: Callable[[Effect], object] = lambda _: True) -> Matches:
    return lambda effect: effect.operation == "remove" and effect.kind == kind and bool(test(effect))


def _request(operations: str, *, ledger: bool | None = None, index: bool = False) -> Matches:
    """A request to a tier, for a whole ledger or for a segment."""
    wanted = frozenset(operations.split())

    def matches(effect: Effect) -> bool:
        if effect.operation not in wanted or effect.target.endswith(_INDEX) is not index:
            return False
        return ledger is None or (_LEDGER in effect.target) is ledger

    return matches


def _hot(operation: str, test: Callable[[Effect], object] = lambda _: True) -> Matches:
    return lambda effect: effect.operation == f"hot {operation}" and bool(test(effect))


def _is_freed(effect: Effect) -> bool:
    return any(int(effect.target) in _freed(info) for info in effect.lists())


def _is_of_deleted_topic(effect: Effect) -> bool:
    return any(_deleting(info) and effect.target in _hot_deletes(info) for info in effect.lists())


def _is_committed(effect: Effect) -> bool:
    return effect.target.rpartition("/")[2] in _segments(effect.listed(), complete=True)


_L, _S, _A, _D = (
    "offload.ledger_commit",
    "offload.segments.upload",
    "offload.segments.upload.start_again",
    "offload.pending_deletes",
)

STEPS: Final = (
    Step(_L, 1, "intent", _intent("an attempt to offload the ledger failed")),
    Step(
        _L,
        2,
        "assign",
        _list(lambda old, new: _own(new, complete=False).items() - _own(old, complete=False).items()),
    ),
    Step(_L, 3, "create-upload", _request("create_upload", ledger=True)),
    Step(_L, 4, "part", _request("upload_part put", ledger=True)),
    Step(_L, 5, "complete", _request("complete_upload", ledger=True)),
    Step(_L, 5, "index", _request("put", ledger=True, index=True)),
    Step(_L, 6, "commit", _list(lambda old, new: _own(new, complete=True).keys() - _own(old, complete=True).keys())),
    Step(f"{_L}.give_up", 1, "intent", _intent("an attempt to offload the ledger failed, and there is no other")),
    Step(
        f"{_L}.give_up",
        2,
        "clear",
        _list(lambda old, new: {i for i in _own(old, complete=False) if i in _ids(new)} - _own_or_streamed(new)),
    ),
    Step(_S, 1, "record", _upload(lambda old, new: not old.uuid and not new.planned)),
    Step(_S, 2, "stub", _list(lambda old, new: _stubs(new) - _stubs(old) and not _stubs(old) - _stubs(new))),
    Step(_S, 3, "create-upload", _request("create_upload", ledger=False)),
    Step(_S, 3, "upload-id", _upload(lambda old, new: old.uuid and new.upload_id and not old.upload_id)),
    Step(_S, 4, "plan", _upload(lambda old, new: old.uuid and len(new.planned) > len(old.planned))),
    Step(_S, 4, "part", _request("upload_part put", ledger=False)),
    Step(_S, 4, "done", _upload(lambda old, new: old.uuid and len(new.done) > len(old.done))),
    Step(_S, 5, "end", _upload(lambda old, new: old.uuid and new.HasField("end") and not old.HasField("end"))),
    Step(_S, 6, "complete", _request("complete_upload", ledger=False)),
    Step(_S, 7, "index", _request("put", ledger=False, index=True)),
    Step(_S, 9, "segment-record", lambda effect: effect.operation == "put" and effect.kind == "segments"),
    Step(
        _S,
        10,
        "commit",
        _list(lambda old, new: _segments(new, complete=True) - _segments(old, complete=True)),
    ),
    Step(_S, 11, "remove-record", _removal("uploads", _is_committed)),
    Step(_A, 1, "record", _upload(lambda old, new: not old.uuid and new.planned)),
    Step(_A, 2, "stub", _list(lambda old, new: _stubs(new) - _stubs(old) and _replaced_stubs(old, new))),
    Step(_A, 3, "intent", _intent("the store ", "it goes to ")),
    Step(_A, 3, "remove-record", _removal("uploads", lambda effect: not _is_committed(effect))),
    Step(_D, 1, "intent", _intent()),
    Step(_D, 2, "unname", _list(lambda old, new: _named(old) - _named(new))),
    Step(_D, 4, "abort", _request("abort_upload")),
    Step(_D, 4, "delete", _request("delete")),
    Step(_D, 5, "upload-record", _removal("uploads", lambda effect: effect.has("deletes"))),
    Step(_D, 5, "segment-record", _removal("segments", lambda effect: effect.has("deletes"))),
    Step(_D, 6, "remove-intent", _removal("deletes")),
    Step("offload.freeing", 3, "commit", _list(lambda old, new: _freed(new) - _freed(old))),
    Step("offload.freeing", 3, "hot-delete", _hot("delete", _is_freed)),
    Step("offload.segments.rollback", 1, "intent", _intent("the topic was taken out of its segments")),
    Step(
        "offload.segments.rollback",
        2,
        "commit",
        _list(
            lambda old, new: (
                (
                    {row.ledgerId for row in old.ledgerInfo if row.offloadContext.offloadSegment}
                    - {row.ledgerId for row in new.ledgerInfo if row.offloadContext.offloadSegment}
                )
                & _ids(new)
            )
        ),
    ),
    Step("ledger.trimming._drop", 1, "intent", _intent("the ledger left the topic's list")),
    Step("ledger.trimming._drop", 2, "commit", _list(lambda old, new: not _deleting(new) and _with_entries(old, new))),
    Step("ledger.trimming", 1, "commit", _list(lambda old, new: _hot_deletes(new) - _hot_deletes(old))),
    Step("ledger.trimming", 2, "hot-delete", _hot("delete")),
    Step("ledger.trimming", 3, "strike-off", _list(lambda old, new: _hot_deletes(old) - _hot_deletes(new))),
    Step("ledger.rollover", 1, "hot-create", _hot("create")),
    Step("ledger.rollover", 2, "commit", _list(lambda old, new: _ids(new) - _ids(old))),
    Step("ledger.rollover", 4, "hot-close", _hot("close", lambda effect: effect.by_writer)),
    Step("ledger.rollover", 5, "commit", _list(lambda old, new: (_open(old) - _open(new)) & _ids(new) and _open(new))),
    Step("ledger.deletion", 1, "commit", _list(lambda old, new: _deleting(new) and not _deleting(old))),
    Step("ledger.deletion", 2, "hot-delete", _hot("delete", _is_of_deleted_topic)),
    Step("ledger.deletion", 3, "remove-cursor", _removal("cursor")),
    Step("ledger.deletion", 4, "remove-list", _removal("list")),
    Step(
        "ledger.recovery", 1, "commit", _list(lambda old, new: text_of(old, OWNER_EPOCH) != text_of(new, OWNER_EPOCH))
    ),
    Step("ledger.recovery", 2, "hot-close", _hot("close", lambda effect: not effect.by_writer)),
    Step("ledger.recovery", 4, "commit", _list(lambda old, new: _open(old) and not _open(new))),
    Step(
        "ledger.managed_ledger.terminate",
        2,
        "commit",
        _list(lambda old, new: _terminated(new) and not _terminated(old)),
    ),
)

WITHOUT_EFFECT: Final = {
    (_L, 0): "plans",
    (_S, 8): "reads",
    (_D, 3): "reads",
    ("offload.freeing", 1): "waits",
    ("offload.freeing", 2): "reads",
    ("offload.segments.rollback", 3): "is pending_deletes 3 to 6",
    ("ledger.trimming._drop", 3): "is pending_deletes 3 to 6",
    ("ledger.rollover", 3): "changes memory",
    ("ledger.recovery", 3): "reads",
    ("ledger.trimming.free", 1): "is freeing 3",
    ("ledger.trimming.free", 2): "is trimming 2",
    ("ledger.managed_ledger.terminate", 1): "is roll-over 4",
    ("ledger.topic_metadata.open", 1): "reads",
    ("ledger.topic_metadata.open", 2): "is recovery 1",
    ("ledger.topic_metadata.update", 1): "changes memory",
    ("ledger.topic_metadata.update", 2): "is each change of a list",
    ("ledger.topic_metadata.update", 3): "reads",
    ("ledger.topic_metadata.update", 4): "reads",
    ("ledger.cursor_store.delete", 1): "is deletion of a topic 3",
    ("ledger.cursor_store.delete", 2): "changes the states of cursors, not data",
}
"""Numbered steps that make no effect of their own, each with the reason."""

INTERRUPTIONS: Final = tuple(Interruption(step, after) for step in STEPS for after in (False, True))
"""What the seeds of the test suite must all have brought about."""


def steps_of(effect: Effect) -> list[Step]:
    """The steps that an effect belongs to."""
    return [step for step in STEPS if step.matches(effect)]


def _own_or_streamed(info: ManagedLedgerInfo) -> set[int]:
    return {row.ledgerId for row in info.ledgerInfo if row.offloadContext.HasField("uidMsb")}


def _stubs(info: ManagedLedgerInfo) -> set[str]:
    return _segments(info, complete=False)


def _replaced_stubs(old: ManagedLedgerInfo, new: ManagedLedgerInfo) -> set[str]:
    return _stubs(old) - _stubs(new) - _segments(new, complete=True)


def _named(info: ManagedLedgerInfo) -> set[str]:
    whole = {uuid_of(row.offloadContext) or "" for row in info.ledgerInfo}
    return (whole | _segments(info, complete=True) | _stubs(info)) - {""}


def _with_entries(old: ManagedLedgerInfo, new: ManagedLedgerInfo) -> bool:
    return any(row.entries for row in old.ledgerInfo if row.ledgerId not in _ids(new))


def _terminated(info: ManagedLedgerInfo) -> bool:
    return info.HasField("terminatedPosition")
