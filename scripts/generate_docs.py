"""Write the pages of ``docs/`` that come from code, or check that they are current.

Each page is a function from nothing to text; add one to ``PAGES`` and ``make docs`` writes it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import architecture
import python_api
import references

from afterglow.config import ENVIRONMENT_PREFIX, SECTIONS, SETTINGS
from afterglow.config.load import is_pulsar_key
from afterglow.pipeline.metrics.definitions import GROUPS, OTHER, Merge
from afterglow.spark.datasource.releases import CAPABILITIES

if TYPE_CHECKING:
    from afterglow.config import Setting
    from afterglow.pipeline.metrics.definitions import Metric

ROOT = Path(__file__).resolve().parent.parent

_CONFIGURATION_HEAD = f"""\
# Configuration

<!-- Generated from src/afterglow/config/settings_*.py by `make docs`; edit there. -->

A setting's value comes from the first of these that has it:

1. an argument of the command line, where the command has one for it;
2. the environment variable `{ENVIRONMENT_PREFIX}<key>`, with the key spelt as below:
   `{ENVIRONMENT_PREFIX}webServicePort=0`;
3. the file given with `--conf`, in the syntax of Java's `.properties`: a Pulsar `broker.conf` or `standalone.conf` can
   be used as it is;
4. the default.

`afterglow topics policy` prints every effective value with its origin.

- **Sizes and durations** may be plain numbers, in the unit that the key names, or carry a suffix: `k`, `m`, `g`, `t`
  (powers of 1024) for sizes; `ms`, `s`, `m`, `h`, `d`, `w`, `y` for durations. Case does not count.
- **A key without a value** makes an optional setting or a list empty; for every other setting it counts as not
  given.
- **An unknown key** is an error that names the nearest known one. Keys that Apache Pulsar 4.0 has and this page has not
  are accepted without effect, all of them named in one warning.
- **Two spellings** of one setting with different values in the same place are an error.
- **Level** is the narrowest at which a setting may be set; `topic` means broker, namespace and topic.
- Settings marked † are Afterglow's own; all others are settings of Pulsar, under Pulsar's names.
"""


def configuration_page() -> str:
    """Every setting, section by section."""
    parts = [_CONFIGURATION_HEAD]
    for section in SECTIONS:
        title, _, introduction = inspect.cleandoc(section.__doc__ or "").partition("\n\n")
        rows = [row for row in SETTINGS.values() if row.section is section]
        parts += [
            f"## {title.rstrip('.')}\n",
            *([introduction + "\n"] if introduction else []),
            "| Setting | Value | Default | Level | Meaning |\n|---|---|---|---|---|",
            "\n".join(map(_table_row, rows)) + "\n",
        ]
    return "\n".join(parts)


def _table_row(row: Setting) -> str:
    default = f"`{row.show(row.default)}`" if row.show(row.default) else "empty"
    mark = "" if is_pulsar_key(row.key) else " †"
    aliases = "".join(
        f" Also `{name}`."
        if alias.description == row.value_type.description
        else f" Also `{name}`: {alias.description}."
        for name, alias in row.aliases.items()
    )
    return f"| `{row.key}`{mark} | {row.value_type.description} | {default} | {row.scope} | {row.doc}{aliases} |"


_METRICS_HEAD = f"""\
# Metrics

<!-- Generated from src/afterglow/pipeline/metrics/definitions.py by `make docs`; edit there. -->

`GET /metrics` on the port of the admin API (`webServicePort`) answers in the text format of Prometheus. Figures are
gathered for each scrape, on a thread, so that none holds up messages. Where authentication is on, a scrape needs a
token as every other call does (`authorization` in Prometheus' `scrape_configs`), as in Pulsar with
`authenticateMetricsEndpoint=true`.

```yaml
scrape_configs:
  - job_name: afterglow
    static_configs:
      - targets: ["localhost:8080"]
```

`dashboards/grafana.json` is a dashboard over these metrics, to be imported into Grafana; a test holds each of its
queries against what is emitted.

- **Names**: what Pulsar measures has Pulsar's name, so that dashboards and alerts made for Pulsar go on working; what
  only Afterglow has begins with `afterglow_`.
- **Labels**: every series has `cluster` besides the labels below. `topic` is the full name, of a partition with its
  number.
- **Bounds**: `metricsMaxTopics` topics have series of their own, in the order in which they were opened, and so have as
  many subscriptions; the figures of all others are summed under the name `{OTHER}`. With
  `exposeTopicLevelMetricsInPrometheus=false` the labels `topic` and `subscription` are left out, and figures are those
  of namespaces.
- **Rates** are averages over the last `statsUpdateFrequencyInSecs` seconds, of offload over
  `managedLedgerStatsPeriodSeconds`, and up to twice as long, depending on when scrapes come.
- **Counters** grow from the start of the process, those of messages from when the topic was opened.
- **Summaries** have besides their quantiles (0.5, 0.95, 0.99 and 1.0, of the last five to ten minutes, at most a
  quarter too high) the counters `…_sum` and `…_count`, as has the one histogram. A topic of which nothing was measured
  has none of them.
- **Of several topics in one series** figures are summed; those marked ‡ are the largest instead.
- Only topics that are open have series.
"""


def metrics_page() -> str:
    """Every metric, group by group."""
    parts = [_METRICS_HEAD]
    for group in GROUPS:
        switched = "Switched by `exposeManagedLedgerMetricsInPrometheus`.\n"
        attached = (
            "Of `afterglow attach` alone. It has no metrics of topics, subscriptions, reads and memory: those of the "
            "topics themselves are the cluster's.\n"
        )
        parts += [
            f"## {group.title}\n",
            *([switched] if group.managed_ledgers else []),
            *([attached] if group.attached else []),
            "| Metric | Type | Labels | Meaning |\n|---|---|---|---|",
            "\n".join(_metric_row(metric) for metric in group.metrics if not _is_sum_or_count(metric)) + "\n",
        ]
    return "\n".join(parts)


def _is_sum_or_count(metric: Metric) -> bool:
    """Whether the page's head tells of it, with all of its kind."""
    return bool(metric.family) and metric.name.endswith(("_sum", "_count"))


def _metric_row(metric: Metric) -> str:
    mark = " ‡" if metric.merge is Merge.MAX else ""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}`{mark} | {metric.type} | {labels} | {metric.help} |"


_LAYERS = ("<!-- layers: generated by `make docs` -->\n", "<!-- end of layers -->\n")


def develop_page() -> str:
    """DEVELOP.md with the current table of layers."""
    before, _, rest = (ROOT / "DEVELOP.md").read_text("utf-8").partition(_LAYERS[0])
    behind = rest.partition(_LAYERS[1])[2]
    return f"{before}{_LAYERS[0]}{architecture.table()}\n{_LAYERS[1]}{behind}"


_RELEASES_HEAD = """\
# Releases of Spark

<!-- Generated from src/afterglow/spark/datasource/releases.py and tests/spark/releases.json by `make docs`; `make
spark-matrix` writes the results. -->

Afterglow runs on Spark 4.0 and later, in classic sessions and, as far as this table says, over Spark Connect. `make
spark-matrix` runs the tests of Spark on the newest patch of each release, and writes this table from their results.
"""

_RELEASES_TAIL = """\
Capabilities are detected in the installed PySpark, so that a platform that adds features of later releases to an older
one has them. A stream or a query that is affected logs one line when it starts.

- **Without filter push-down**, `pushdown=true` has no effect: Spark applies all filters to the rows, and the result is
  the same. `start`, `end`, `since` and `until` prune on every release.
- **Without limits of micro-batches**, Spark asks a Python data source only for the end of the next micro-batch, and
  does not say which trigger the query has. The first micro-batch of every run has everything that was not read yet;
  those after it keep to `maxBytesPerTrigger` and `maxEntriesPerTrigger`. Tasks are bounded by `maxPartitionBytes` on
  every release, so that memory does not depend on the size of a micro-batch.
- **Without `Trigger.AvailableNow`** Spark runs a single micro-batch. After a crash it is the one that was interrupted,
  so that new messages wait for the next run. `afterglow export` starts the query again in that case.
- **Over Spark Connect** the data source runs on the server, in whose Python this package must be installed; the client
  needs only PySpark. `afterglow export`, `afterglow verify --deep` and offload need a driver in their own process, and
  are refused with an error in a session of Spark Connect.

## Lowest versions

The same run tests the packages in an environment with the lowest version of every requirement.
"""


def releases_page() -> str:
    """The table of what each release of Spark supports, and the lowest versions of requirements."""
    results: dict[str, Any] = json.loads((ROOT / "tests" / "spark" / "releases.json").read_text("utf-8"))
    releases = [name for name in results if name != "lowest"]
    heads = [f"Spark {results[name]['versions']['pyspark']}" for name in releases]
    rows = [["", *heads], ["---"] * (len(heads) + 1)]
    for capability in CAPABILITIES:
        found = [results[name]["capabilities"].get(capability.name, "not tested") for name in releases]
        rows.append([capability.title, *(capability.without if result == "no" else result for result in found)])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    unlisted = {"all", "testing"}
    extras = {name: found for name, found in project["optional-dependencies"].items() if name not in unlisted}
    lowest = [["required by", "lowest versions"], ["---", "---"]]
    for name, requirements in {"the package": project["dependencies"], **extras}.items():
        lowest.append([name if name == "the package" else f"extra `{name}`", ", ".join(map(_lowest, requirements))])
    tables = ["\n".join(f"| {' | '.join(row)} |" for row in table) for table in (rows, lowest)]
    return "\n".join([_RELEASES_HEAD, tables[0] + "\n", _RELEASES_TAIL, tables[1] + "\n"])


def _lowest(requirement: str) -> str:
    name, operator, version = re.split(r"(>=|==)", requirement, maxsplit=1)
    return f"{name} {version}" if operator == ">=" else f"{name} {version} only"


PAGES = {
    "docs/configuration.md": configuration_page,
    "docs/metrics.md": metrics_page,
    "docs/architecture.md": architecture.page,
    "docs/spark-releases.md": releases_page,
    "docs/python-api.md": python_api.page,
    "docs/cli.md": references.cli_page,
    "docs/rest-api.md": references.rest_page,
    "docs/openapi.json": references.openapi_json,
    "DEVELOP.md": develop_page,
}


def main() -> int:
    """Write or check every page; 1 if a page is stale."""
    parser = argparse.ArgumentParser(description="Write the pages of docs/ that come from code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    check = parser.parse_args().check
    stale = []
    for name, page in PAGES.items():
        path, content = ROOT / name, page()
        if path.is_file() and path.read_text("utf-8") == content:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
            print(f"wrote {name}")
    if check and stale:
        print(f"stale: {', '.join(stale)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
