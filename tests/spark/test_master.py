from __future__ import annotations

import pytest

from afterglow.errors import ConfigError
from afterglow.spark.master import check_local, with_attempts


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
def test_a_local_master_tries_a_task_again_unless_it_says_how_often(given: str, used: str) -> None:
    assert with_attempts(given) == used


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[*,2]", "local[ 4 , 2 ]"])
def test_a_local_master_may_run_tasks_that_read_files(master: str) -> None:
    check_local(master)


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://https://h", "local-cluster[2,1,1024]", "local[x]"])
def test_a_master_elsewhere_is_refused_with_the_option_and_the_reason(master: str) -> None:
    with pytest.raises(ConfigError, match=r"--master .* cannot read from afar yet; use local\[\*\]"):
        check_local(master)
