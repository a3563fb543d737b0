"""Every page that shows commands, programs or statements is run by a test, or is listed here with the reason."""

from __future__ import annotations

from pathlib import Path

from tests.support.pages import Page

ROOT = Path(__file__).parents[2]
RUN = {
    "README.md": "tests/docs/test_readme.py",
    "docs/clusters.md": "tests/docs/test_clusters_page.py",
    "docs/dataframes.md": "tests/docs/test_dataframes_python.py",
    "docs/offloaders.md": "tests/clients/test_external_driver.py",
    "docs/quick-start.md": "tests/docs/test_quick_start.py",
    "docs/restore.md": "tests/docs/test_restore_page.py",
    "docs/security.md": "tests/docs/test_security_page.py",
    "docs/spark-cluster.md": "tests/support/packed_environment.py",
    "docs/spark-cookbook.md": "tests/docs/test_spark_cookbook.py",
    "docs/sql.md": "tests/docs/test_sql_page.py",
    "docs/tokens.md": "tests/docs/test_tokens_page.py",
}
"""Pages with the test that runs them, or their programs."""
PARSED_ONLY = {
    "docs/attach.md": "needs a Pulsar cluster; tests/attach/test_live_attach.py runs the command against one",
    "docs/cli.md": "examples of the help, for topics and clusters that the reader has",
    "docs/console.md": "starts a server",
    "docs/installation.md": "installs packages; scripts/check_wheel.py tests the wheels",
    "docs/migration.md": "changes a running cluster; tests/clients does the same by other calls",
    "docs/monitoring.md": "one call of /metrics; tests/admin/test_dashboard.py tests the files",
    "docs/operating.md": "commands on a bucket and on a running server",
    "docs/upgrade.md": "needs two releases",
}
"""Pages whose commands are only compared with the command line (test_pages.py), with the reason."""
SHELLS = {"sh", "bash", "python", "sql"}


def shown() -> set[str]:
    """The pages with something to run."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return {
        str(page.relative_to(ROOT))
        for page in pages
        if any(listing.language in SHELLS for listing in Page.read(page).listings())
    }


def test_every_page_with_commands_is_run_or_listed_with_a_reason() -> None:
    assert shown() - set(RUN) - set(PARSED_ONLY) == set(), "run the page in a test, and add it to RUN"


def test_no_row_is_left_of_a_page_that_has_no_commands_or_is_listed_twice() -> None:
    assert (set(RUN) | set(PARSED_ONLY)) - shown() == set()
    assert set(RUN) & set(PARSED_ONLY) == set()


def test_every_named_test_reads_its_page() -> None:
    for page, test in RUN.items():
        if test.startswith("tests/docs"):
            assert Path(page).name in (ROOT / test).read_text(), (page, test)
        assert (ROOT / test).is_file()
