"""The list of stock keys against the class in Pulsar's own jar."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from afterglow.config.load import pulsar_keys
from afterglow.config.properties import parse_properties

STOCK = Path(__file__).parent / "stock"
ARTIFACT = "org.apache.pulsar:pulsar-broker-common:4.0.8"
CONFIGURATION_CLASS = "org.apache.pulsar.broker.ServiceConfiguration"
MEMBER = re.compile(r"^  (?:private|protected|public)[^\n(]*?(\w+);\n((?:    .*\n)*)", re.MULTILINE)


@pytest.mark.parametrize("name", ["broker.conf", "standalone.conf"])
def test_every_key_of_the_stock_files_is_listed(name: str) -> None:
    keys = {item.key for item in parse_properties((STOCK / name).read_text("utf-8"))}
    assert keys - pulsar_keys() == set()


def test_the_list_is_sorted_and_has_no_repeats() -> None:
    path = Path(__file__).parents[2] / "src/afterglow/config/pulsar_keys.txt"
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    assert lines == sorted(set(lines))


@pytest.mark.pulsar
def test_every_setting_of_pulsar_s_configuration_class_is_listed(tmp_path: Path) -> None:
    maven, javap = shutil.which("mvn"), shutil.which("javap")
    if maven is None or javap is None:
        pytest.skip("no mvn or javap on the path")
    subprocess.run(
        [maven, "-q", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={tmp_path}"],
        cwd=tmp_path,
        check=True,
        timeout=300,
    )
    (jar,) = tmp_path.glob("*.jar")
    listing = subprocess.run(
        [javap, "-v", "-private", "-cp", str(jar), CONFIGURATION_CLASS],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    settings = {name for name, body in MEMBER.findall(listing) if "FieldContext" in body}
    assert len(settings) > 500
    assert settings - pulsar_keys() == set()
