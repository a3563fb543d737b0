"""Decoder of the golden objects and of random typed values, run as a program to compare machine code of targets.

It prints as JSON the targets of the two images, the modules that must not be loaded, and a digest for each golden case
and each random definition. Every block is decoded as it is, and again with some bytes changed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from random import Random
from typing import TYPE_CHECKING

from tests.support import golden
from tests.support.typed import TOPIC, RandomTypes, encode_avro, messages, version

from afterglow.errors import CorruptBlock
from afterglow.format._kernels import calls, native
from afterglow.format.checks import open_block
from afterglow.format.columns import decode_messages
from afterglow.format.frames import as_bytes_array
from afterglow.format.index import decode_index
from afterglow.format.objects import parse_key
from afterglow.format.schema import SchemaVersion
from afterglow.read.typed import TypedColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFINITIONS = 12
DAMAGED = 3


def decoded_case(case: golden.GoldenCase) -> str:
    digest = hashlib.sha256()
    for key in sorted(case.objects):
        if parse_key(key).index:
            continue
        data = case.objects[key]
        for _group, _number, start, end in decode_index(case.objects[f"{key}-index"]).extents():
            for block in variants(data[start:end]):
                try:
                    frames = open_block(block).frames
                except CorruptBlock as error:
                    digest.update(str(error).encode())
                    continue
                digest.update(repr(calls.measure_entries(as_bytes_array(block), frames.offsets)).encode())
                for part in decode_messages(block, frames, 1, check=True):
                    digest.update(repr(part.batch.to_pylist()).encode())
                    digest.update(repr(part.unreadable).encode())
    return digest.hexdigest()


def variants(block: bytes) -> Iterator[bytes]:
    yield block
    random = Random(len(block))
    for _ in range(DAMAGED if len(block) > 128 else 0):
        damaged = bytearray(block)
        for _ in range(10):
            damaged[random.randrange(128, len(block))] = random.randrange(256)
        yield bytes(damaged)


def decoded_values(seed: int) -> str:
    """Avro values, and JSON texts, of a random definition; some are cut."""
    types = RandomTypes(Random(seed))
    definition = types.record()
    text = json.dumps(definition)
    values = [encode_avro(text, types.value(definition)[0]) for _ in range(40)]
    values += [value[: len(value) // 2] for value in values]
    texts = [json.dumps({f"f{k}": [k, 1.5e-3 * k, None, "ż€\n", True][n % 5] for k in range(6)}) for n in range(40)]
    digest = hashlib.sha256()
    for kind, given in (("AVRO", values), ("JSON", [text.encode() for text in texts])):
        decoder = TypedColumns({TOPIC: [SchemaVersion(version(0), kind, text.encode())]}, ["value", "_corrupt"])
        for batch in decoder.of(messages(given).select(decoder.needed), TOPIC):
            digest.update(repr(batch.to_pylist()).encode())
    return digest.hexdigest()


def main() -> None:
    found = {name: decoded_case(case) for name, case in golden.cases().items() if name != "fs_mapfile"}
    found |= {f"definition {seed}": decoded_values(seed) for seed in range(DEFINITIONS)}
    result = {
        "targets": [native.kernels(image).manifest.target for image in native.IMAGES],
        "compilers": sorted({"llvmlite", "numba"} & set(sys.modules)),
        "digests": found,
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
