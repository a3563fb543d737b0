from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from afterglow.admin.resource import encode, encode_in_turns

ROW = {"ledger": 1, "name": "\u00fc", "at": None, "open": True, "properties": {"a": "b"}, "tags": ["x", "y"]}


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        -1.5,
        [],
        {},
        [[]],
        {"a": {}},
        [{}, [], ()],
        {0: {"a": 1}, True: [1], None: (2, [3])},
        {"plain": 1, "rows": [ROW] * 1000, "end": None},
        {"ns": {"bundle": {"persistent": {f"t-{number}": ROW for number in range(1000)}}}},
        ["name"] * 1000,
        {str(number): number for number in range(1000)},
    ],
)
def test_json_encoded_in_turns_equals_json_encoded_at_once(value: object) -> None:
    body = asyncio.run(encode_in_turns(value))
    assert body == encode(value)
    assert json.loads(body) == json.loads(json.dumps(value))


@pytest.mark.parametrize("value", [[float("nan")], {"a": [float("inf")]}, [["x"], float("inf")]])
def test_a_number_that_json_cannot_express_is_not_encoded(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        asyncio.run(encode_in_turns(value))


@pytest.mark.parametrize("value", [[ROW] * 10_000, {"rows": [ROW] * 10_000}, ["name"] * 10_000])
def test_the_event_loop_runs_while_a_large_answer_is_encoded(value: Any) -> None:
    async def encode_beside_another() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        await encode_in_turns(value)
        beside.cancel()
        return turns

    assert asyncio.run(encode_beside_another()) >= 50
