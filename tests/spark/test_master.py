from __future__ import annotations

import pytest

from afterglow.errors import ConfigError
from afterglow.spark.master import is_local, master_hosts, with_attempts


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[3,1]", "local[3,1]"),
        ("local[*, 7]", "local[*, 7]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_local_master_gets_retries_unless_it_has_a_number_of_attempts(given: str, used: str) -> None:
    assert with_attempts(given) == used


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[*,2]", "local[ 4 , 2 ]"])
def test_a_local_master_is_recognised(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://https://h", "local-cluster[2,1,1024]"])
def test_other_masters_are_not_local(master: str) -> None:
    assert not is_local(master)


@pytest.mark.parametrize("master", ["local[x]", "local[2", "local[]", "local 2", "nope", "", "spark://", "[*]"])
def test_a_malformed_master_is_refused_with_the_option_and_the_cure(master: str) -> None:
    with pytest.raises(ConfigError, match=r"--master .* \(sparkMaster\) is malformed: use local\[\*\]"):
        is_local(master)


def test_a_server_of_spark_connect_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--master sc://h:15002 \(sparkMaster\) is a server of Spark Connect"):
        is_local("sc://h:15002")


def test_the_masters_of_a_standalone_cluster_are_on_known_hosts() -> None:
    assert master_hosts("spark://one:7077,two:7078,[::1]:7079") == ("one", "two", "::1")
    assert master_hosts("k8s://https://h:443") == master_hosts("yarn") == ()
