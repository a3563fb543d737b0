"""Generate the protobuf modules from ``src/afterglow/format/proto/*.proto``.

Each ``NAME.proto`` gives ``NAME_pb2.py`` (protoc) and ``NAME_pb2.pyi`` (mypy-protobuf, whose stubs pass strict mypy and
keep the comments). The result depends only on the ``.proto`` files and on the locked versions of the two tools.

``--check`` writes nothing and fails where a committed file is not what would be generated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parent.parent / "src"
PROTO_DIR = Path("afterglow/format/proto")


def generate(output_root: Path) -> list[Path]:
    """Generate all modules below ``output_root``; returns their paths relative to it.

    Files are named from the source root, so that their names in protobuf's process-wide pool (where two files of one
    name clash) begin with our package.

    Raises:
        subprocess.CalledProcessError: protoc refused a file; it has said why on stderr.
    """
    protos = sorted((SOURCE_ROOT / PROTO_DIR).glob("*.proto"))
    plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--plugin=protoc-gen-mypy={plugin}",
            f"--proto_path={SOURCE_ROOT}",
            f"--python_out={output_root}",
            f"--mypy_out=quiet:{output_root}",
            *(str(proto.relative_to(SOURCE_ROOT)) for proto in protos),
        ],
        cwd=SOURCE_ROOT,
        check=True,
    )
    return [PROTO_DIR / f"{proto.stem}_pb2{suffix}" for proto in protos for suffix in (".py", ".pyi")]


def stale_files() -> list[Path]:
    """Committed files that differ from what would be generated, or have no ``.proto`` any more."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        stale = [
            path
            for path in fresh
            if not (SOURCE_ROOT / path).exists()
            or (SOURCE_ROOT / path).read_bytes() != (Path(scratch) / path).read_bytes()
        ]
    committed = {path.relative_to(SOURCE_ROOT) for path in (SOURCE_ROOT / PROTO_DIR).glob("*_pb2.py*")}
    return stale + sorted(committed - set(fresh))


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Generate the protobuf modules.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a generated file is not current")
    if not parser.parse_args().check:
        for path in generate(SOURCE_ROOT):
            print(f"src/{path}")
        return 0
    stale = stale_files()
    for path in stale:
        print(f"src/{path} is not what its .proto gives: run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
