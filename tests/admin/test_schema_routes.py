from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pulsar.schema import StringSchema

if TYPE_CHECKING:
    from tests.admin.conftest import Admin

PATH = "schemas/public/default/t"
STRING = {"type": "STRING", "schema": "", "properties": {"a": "b"}}


def avro(*fields: str) -> dict[str, Any]:
    columns = [{"name": name, "type": ["null", "int"], "default": None} for name in fields]
    return {"type": "AVRO", "schema": json.dumps({"type": "record", "name": "r", "fields": columns}), "properties": {}}


def post(admin: Admin, body: object) -> int:
    answer = admin.call("POST", f"{PATH}/schema", body)
    assert answer.status == 200, answer
    return int(answer.json["version"]["version"])


def test_versions_are_added_shown_and_deleted(admin: Admin) -> None:
    admin.refused(404, "GET", f"{PATH}/schema")
    admin.refused(404, "DELETE", f"{PATH}/schema")
    assert admin.get(f"{PATH}/schemas") == {"getSchemaResponses": []}
    assert [post(admin, avro("x")), post(admin, avro("x", "y")), post(admin, avro("x"))] == [0, 1, 0]
    newest = admin.get(f"{PATH}/schema")
    assert (newest["version"], newest["type"], newest["data"]) == (1, "AVRO", avro("x", "y")["schema"])
    assert newest["timestamp"] > 0
    assert admin.get(f"{PATH}/schema/0")["data"] == avro("x")["schema"]
    assert [row["version"] for row in admin.get(f"{PATH}/schemas")["getSchemaResponses"]] == [0, 1]
    admin.refused(404, "GET", f"{PATH}/schema/2")
    admin.refused(400, "GET", f"{PATH}/schema/newest")
    assert admin.call("DELETE", f"{PATH}/schema").json == {"version": 1}
    admin.refused(404, "GET", f"{PATH}/schema")


def test_properties_come_back(admin: Admin) -> None:
    post(admin, STRING)
    assert admin.get(f"{PATH}/schema")["properties"] == {"a": "b"}


def test_a_pair_of_key_and_value_comes_back(admin: Admin) -> None:
    definition = {"key": "", "value": json.loads(avro("x")["schema"])}
    properties = {
        "key.schema.name": "k",
        "key.schema.type": "STRING",
        "key.schema.properties": "{}",
        "value.schema.name": "v",
        "value.schema.type": "AVRO",
        "value.schema.properties": "{}",
        "kv.encoding.type": "INLINE",
    }
    post(admin, {"type": "KEY_VALUE", "schema": json.dumps(definition), "properties": properties})
    found = admin.get(f"{PATH}/schema")
    assert (found["type"], json.loads(found["data"]), found["properties"]) == ("KEY_VALUE", definition, properties)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, None),
        (400, {"type": "STRANGE", "schema": ""}),
        (400, {"type": "STRING", "schema": 5}),
        (400, {"type": "STRING", "definition": ""}),
        (400, {"type": "KEY_VALUE", "schema": "no json"}),
        (409, {"type": "AVRO", "schema": "no json"}),
    ],
)
def test_an_invalid_schema_is_refused(admin: Admin, status: int, body: object) -> None:
    before = admin.state()
    admin.refused(status, "POST", f"{PATH}/schema", body)
    assert admin.state() == before


@pytest.mark.parametrize("name", ["BYTES", "NONE"])
def test_raw_bytes_are_a_schema_as_in_pulsar(admin: Admin, name: str) -> None:
    assert post(admin, {"type": name, "schema": "", "properties": {}}) == 0
    assert admin.get(f"{PATH}/schema")["type"] == "NONE"


def test_uploads_obey_the_strategy_and_ignore_the_ban_on_updates(admin: Admin) -> None:
    admin.do("POST", "namespaces/public/default/isAllowAutoUpdateSchema", body=False)
    assert post(admin, avro("x")) == 0
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("other", schema=StringSchema())
    client.close()
    admin.do("PUT", "namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE")
    admin.refused(409, "POST", f"{PATH}/schema", avro("x", "y"))
    admin.do("PUT", "namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert [post(admin, avro("x", "y")), post(admin, STRING)] == [1, 2]


def test_a_schema_that_does_not_follow_is_refused(admin: Admin) -> None:
    post(admin, avro("x"))
    admin.refused(409, "POST", f"{PATH}/schema", STRING)
    admin.refused(404, "POST", PATH.replace("default", "nowhere") + "/schema", STRING)


def test_schemas_that_messages_refer_to_are_deleted_by_force_only(admin: Admin) -> None:
    client = pulsar.Client(admin.service.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_producer("t", schema=StringSchema()).send("x")
    client.close()
    assert admin.get(f"{PATH}/schema")["type"] == "STRING"
    assert "messages" in admin.refused(409, "DELETE", f"{PATH}/schema")
    assert admin.call("DELETE", f"{PATH}/schema?force=true").status == 200
    admin.refused(404, "GET", f"{PATH}/schema")
    admin.refused(404, "DELETE", f"{PATH}/schema?force=true")
    # The message still names version 0, which must not become that of another schema.
    assert post(admin, avro("x")) == 1
    admin.refused(404, "GET", f"{PATH}/schema/0")


@pytest.mark.parametrize("path", ["t", "t/partitions"])
def test_version_numbers_start_again_with_a_new_topic_only(admin: Admin, path: str) -> None:
    topic = f"persistent/public/default/{path}"
    admin.do("PUT", topic, 2 if path.endswith("partitions") else None)
    assert post(admin, avro("x")) == 0
    assert admin.call("DELETE", f"{PATH}/schema").status == 200
    assert post(admin, STRING) == 1
    admin.do("DELETE", topic)
    assert post(admin, avro("x")) == 0
