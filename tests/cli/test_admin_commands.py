"""Commands of small groups and of the table: tenants, clusters, brokers, schemas, time to live."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli
    from tests.support.serving import Served


def test_a_tenant_is_created_changed_in_what_is_given_and_deleted(cli: Cli) -> None:
    tenant = f"t{uuid4().hex}"
    cli.do("tenants", "create", tenant, "--admin-roles", "alice, bob")
    assert cli.rows("tenants", "get", tenant) == [{"adminRoles": ["alice", "bob"], "allowedClusters": ["standalone"]}]
    cli.do("tenants", "update", tenant, "-r", "carol")
    assert cli.rows("tenants", "get", tenant) == [{"adminRoles": ["carol"], "allowedClusters": ["standalone"]}]
    assert "--admin-roles" in cli.refused(2, "tenants", "update", tenant)
    assert tenant in cli.do("tenants", "list").splitlines()
    cli.do("tenants", "delete", tenant)
    assert "does not exist" in cli.refused(1, "tenants", "get", tenant)


def test_clusters_and_brokers_show_addresses_and_health(cli: Cli, served: Served) -> None:
    assert cli.do("clusters", "list") == "standalone\n"
    assert cli.rows("clusters", "get", "standalone")[0]["brokerServiceUrl"] == served.service_url
    assert cli.do("brokers", "list").strip() in served.admin_url
    assert cli.do("brokers", "healthcheck") == "ok\n"
    assert cli.rows("brokers", "version")[0]["version"].startswith("4.")
    assert cli.rows("brokers", "get-runtime-config")[0]["clusterName"] == "standalone"


def test_a_schema_is_uploaded_shown_by_version_and_deleted(cli: Cli, tmp_path: Path) -> None:
    topic = f"s{uuid4().hex}"
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "STRING", "schema": "", "properties": {}}))
    assert cli.rows("schemas", "upload", topic, "--filename", str(file)) == [{"version": 0}]
    assert cli.rows("schemas", "get", topic)[0]["type"] == "STRING"
    assert [row["version"] for row in cli.rows("schemas", "get", topic, "--all-version")] == [0]
    assert "no version 1" in cli.refused(1, "schemas", "get", topic, "-v", "1")
    cli.do("schemas", "delete", topic)
    assert "has no schema" in cli.refused(1, "schemas", "get", topic)


@pytest.mark.parametrize("content", [None, "{"])
def test_an_invalid_schema_file_exits_2(cli: Cli, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "schema.json"
    if content is not None:
        file.write_text(content)
    assert "schema.json" in cli.refused(2, "schemas", "upload", "t", "-f", str(file))


def test_a_time_to_live_is_set_shown_and_removed(cli: Cli) -> None:
    namespace = f"public/n{uuid4().hex}"
    cli.do("namespaces", "create", namespace)
    cli.do("namespaces", "set-message-ttl", namespace, "-ttl", "2d")
    assert cli.rows("namespaces", "get-message-ttl", namespace) == [{"messageTTL": 172_800}]
    cli.do("namespaces", "remove-message-ttl", namespace)
    assert cli.rows("namespaces", "get-message-ttl", namespace) == [{"messageTTL": None}]
