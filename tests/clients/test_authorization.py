"""What two roles may and may not do: the stock client and plain HTTP against a real process with authorization."""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.error
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any

import jwt
import pulsar
import pytest
from tests.support.raw_client import ErrorAnswer, RawClient
from tests.support.serving import serving, start

from afterglow.errors import AccessDenied
from afterglow.format.position import Position
from afterglow.format.proto import pulsar_api_pb2 as wire
from afterglow.hot.pulsar import PulsarAddress, RawReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.serving import Served

SECRET = bytes(range(32))
WAIT_MS = 20_000
NAMESPACE = "acme/orders"


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a superuser, a tenant with an admin, a role that may produce and one that may consume."""
    directory = tmp_path_factory.mktemp("authorized")
    conf = directory / "broker.conf"
    conf.write_text(
        "authenticationEnabled=true\n"
        "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken\n"
        f"tokenSecretKey=data:;base64,{base64.b64encode(SECRET).decode()}\n"
        "authorizationEnabled=true\n"
        "authorizationProvider=org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider\n"
        "superUserRoles=root\n"
        f"brokerClientAuthenticationParameters=token:{token('root')}\n"
    )
    with serving(directory / "home", "--conf", str(conf)) as found:
        for role, method, path, body in (
            ("root", "PUT", "tenants/acme", {"adminRoles": ["admin"], "allowedClusters": ["standalone"]}),
            ("admin", "PUT", f"namespaces/{NAMESPACE}", None),
            ("admin", "POST", f"namespaces/{NAMESPACE}/permissions/writer", ["produce"]),
            ("admin", "POST", f"namespaces/{NAMESPACE}/permissions/reader", ["consume"]),
        ):
            assert admin(found, role, method, path, body)[0] == 204, path
        yield found


@pytest.fixture
def topic() -> str:
    return f"persistent://{NAMESPACE}/t-{uuid.uuid4().hex[:10]}"


def admin(served: Served, role: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """Status and body of a call of the admin API."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token(role)}", "Content-Type": "application/json"}
    call = urllib.request.Request(f"{served.admin_url}/admin/v2/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(call, timeout=20) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


@pytest.fixture
def connect(served: Served) -> Iterator[Callable[[str], Any]]:
    """Clients by role."""
    with contextlib.ExitStack() as clients:

        def client(role: str) -> Any:
            found = pulsar.Client(
                served.service_url,
                authentication=pulsar.AuthenticationToken(token(role)),
                operation_timeout_seconds=10,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
            clients.callback(found.close)
            return found

        yield client


def test_a_role_that_may_produce_does_not_consume_and_the_other_way_round(
    connect: Callable[[str], Any], topic: str
) -> None:
    writer, reader = connect("writer"), connect("reader")
    consumer = reader.subscribe(topic, "s")
    writer.create_producer(topic).send(b"allowed")
    message = consumer.receive(WAIT_MS)
    assert message.data() == b"allowed"
    consumer.acknowledge(message)
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(WAIT_MS).data() == b"allowed"
    with pytest.raises(pulsar.AuthorizationError):
        reader.create_producer(topic)
    with pytest.raises(pulsar.AuthorizationError):
        writer.subscribe(topic, "s2")
    with pytest.raises(pulsar.AuthorizationError):
        writer.create_reader(topic, pulsar.MessageId.earliest)


def test_a_role_without_a_grant_cannot_even_resolve_topics(
    served: Served, connect: Callable[[str], Any], topic: str
) -> None:
    stranger = connect("stranger")
    with pytest.raises(pulsar.AuthorizationError):
        stranger.create_producer(topic)
    with pytest.raises(pulsar.AuthorizationError):
        stranger.subscribe(topic, "s")
    assert admin(served, "stranger", "GET", f"{path_of(topic)}/stats")[0] == 403
    with RawClient(served.service_url, token=token("stranger")) as client:
        assert client.lookup(topic).error == wire.AuthorizationError
    assert topic not in admin(served, "admin", "GET", f"persistent/{NAMESPACE}")[1]


def test_superusers_and_tenant_admins_do_everything_below_the_tenant(connect: Callable[[str], Any], topic: str) -> None:
    for role in ("root", "admin"):
        client = connect(role)
        consumer = client.subscribe(topic, role)
        client.create_producer(topic).send(role.encode())
        assert consumer.receive(WAIT_MS).data() == role.encode()
    with pytest.raises(pulsar.AuthorizationError):
        connect("admin").create_producer(f"persistent://public/default/{uuid.uuid4().hex}")


def test_a_grant_on_one_topic_opens_this_topic_and_no_other(
    served: Served, connect: Callable[[str], Any], topic: str
) -> None:
    assert admin(served, "admin", "PUT", path_of(topic))[0] == 204
    dev = connect("dev")
    with pytest.raises(pulsar.AuthorizationError):
        dev.create_producer(topic)
    assert admin(served, "admin", "POST", f"{path_of(topic)}/permissions/dev", ["produce"])[0] == 204
    dev.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.AuthorizationError):
        dev.create_producer(f"{topic}-other")


def test_a_subscription_that_names_roles_is_closed_to_others(
    served: Served, connect: Callable[[str], Any], topic: str
) -> None:
    path = f"namespaces/{NAMESPACE}/permissions/subscription/kept"
    assert admin(served, "admin", "POST", path, ["another-role"])[0] == 204
    reader = connect("reader")
    with pytest.raises(pulsar.AuthorizationError):
        reader.subscribe(topic, "kept")
    reader.subscribe(topic, "open")


def test_a_revocation_disconnects_open_producers_and_consumers(
    served: Served, connect: Callable[[str], Any], topic: str
) -> None:
    permissions = f"namespaces/{NAMESPACE}/permissions"
    for role in ("leaving", "staying"):
        assert admin(served, "admin", "POST", f"{permissions}/{role}", ["produce", "consume"])[0] == 204
    clients = {role: connect(role) for role in ("leaving", "staying")}
    consumers = {role: client.subscribe(topic, role) for role, client in clients.items()}
    producers = {role: client.create_producer(topic, role) for role, client in clients.items()}

    def connected() -> tuple[set[str], set[str]]:
        stats = admin(served, "admin", "GET", f"{path_of(topic)}/stats")[1]
        subscriptions = {name for name, found in stats["subscriptions"].items() if found["consumers"]}
        return subscriptions, {found["producerName"] for found in stats["publishers"]}

    assert connected() == ({"leaving", "staying"}, {"leaving", "staying"})
    assert admin(served, "admin", "DELETE", f"{permissions}/leaving")[0] == 204
    assert connected() == ({"staying"}, {"staying"})
    producers["staying"].send(b"x")
    assert consumers["staying"].receive(WAIT_MS).data() == b"x"
    with pytest.raises(pulsar.AuthorizationError):
        connect("leaving").subscribe(topic, "leaving")
    assert connected() == ({"staying"}, {"staying"})


def test_a_producer_that_waits_for_a_topic_does_not_get_it_after_its_right_was_revoked(
    served: Served, topic: str
) -> None:
    permission = f"namespaces/{NAMESPACE}/permissions/waiting"
    assert admin(served, "admin", "POST", permission, ["produce"])[0] == 204
    kinds = {wire.BaseCommand.PRODUCER_SUCCESS, wire.BaseCommand.ERROR}

    def ask(client: RawClient, request_id: int, mode: wire.ProducerAccessMode.ValueType) -> None:
        asked = wire.CommandProducer(topic=topic, producer_id=1, request_id=request_id, producer_access_mode=mode)
        client.send(wire.BaseCommand(type=wire.BaseCommand.PRODUCER, producer=asked))

    def answer(client: RawClient) -> wire.BaseCommand:
        return client.next(lambda frame: frame.command.type in kinds).command

    with RawClient(served.service_url, token=token("waiting")) as waiting:
        with RawClient(served.service_url, token=token("writer")) as first:
            ask(first, 1, wire.Exclusive)
            assert answer(first).producer_success.producer_ready
            ask(waiting, 1, wire.WaitForExclusive)
            assert not answer(waiting).producer_success.producer_ready
            assert admin(served, "admin", "DELETE", permission)[0] == 204
        assert answer(waiting).error.error == wire.ServiceNotReady
        ask(waiting, 2, wire.WaitForExclusive)
        assert answer(waiting).error.error == wire.AuthorizationError


def test_topic_lists_and_schemas_need_a_right_too(served: Served, connect: Callable[[str], Any], topic: str) -> None:
    schema = wire.Schema(name="s", type=wire.Schema.String, schema_data=b"")
    with RawClient(served.service_url, token=token("writer")) as client:
        client.get_or_create_schema(topic, schema)
        assert list_topics(client) is None
    with RawClient(served.service_url, token=token("reader")) as client:
        with pytest.raises(ErrorAnswer, match=r"AuthorizationError: Client is not authorized to GetOrCreateSchema"):
            client.get_or_create_schema(topic, schema)
        assert list_topics(client) is None
    with RawClient(served.service_url, token=token("stranger")) as client:
        assert list_topics(client) == "Client is not authorized to GetTopicsOfNamespace"
        ask = wire.CommandGetSchema(request_id=8, topic=topic)
        client.send(wire.BaseCommand(type=wire.BaseCommand.GET_SCHEMA, getSchema=ask))
        answer = client.next(lambda frame: frame.command.type == wire.BaseCommand.GET_SCHEMA_RESPONSE)
        assert answer.command.getSchemaResponse.error_code == wire.AuthorizationError
    connect("reader").subscribe(topic, "s", schema=pulsar.schema.StringSchema())


def list_topics(client: RawClient) -> str | None:
    """Ask for the topics of the namespace; returns the message of the refusal, if it is one."""
    ask = wire.CommandGetTopicsOfNamespace(request_id=7, namespace=NAMESPACE)
    client.send(wire.BaseCommand(type=wire.BaseCommand.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=ask))
    kinds = {wire.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, wire.BaseCommand.ERROR}
    answer = client.next(lambda frame: frame.command.type in kinds).command
    return answer.error.message if answer.type == wire.BaseCommand.ERROR else None


def test_a_producer_makes_a_subscription_only_if_it_may_consume(served: Served, topic: str) -> None:
    with RawClient(served.service_url, token=token("writer")) as client:
        ask = wire.CommandProducer(topic=topic, producer_id=1, request_id=9, initial_subscription_name="s")
        client.send(wire.BaseCommand(type=wire.BaseCommand.PRODUCER, producer=ask))
        kinds = {wire.BaseCommand.PRODUCER_SUCCESS, wire.BaseCommand.ERROR}
        answer = client.next(lambda frame: frame.command.type in kinds).command
        assert answer.error.error == wire.AuthorizationError
        assert answer.error.message == "Client is not authorized to Produce"


def test_raw_readers_need_the_right_to_consume_and_the_servers_own_token_has_it(
    served: Served, connect: Callable[[str], Any], topic: str
) -> None:
    sent = connect("writer").create_producer(topic, batching_enabled=False).send(b"raw")
    at = Position(sent.ledger_id(), sent.entry_id())
    for role in ("root", "reader"):
        with RawReader(PulsarAddress(served.service_url, token(role)), topic, offloads=True) as reader:
            assert sum(run.count for run in reader.read(at, at)) == 1
    for role in ("writer", "stranger"):
        address = PulsarAddress(served.service_url, token(role))
        with pytest.raises(AccessDenied), RawReader(address, topic, offloads=True) as reader:
            list(reader.read(at, at))


def test_a_server_that_knows_nobody_does_not_start_with_authorization(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("authorizationEnabled=true\n")
    with pytest.raises(RuntimeError, match=r"authorizationEnabled .*needs authenticationEnabled=true"):
        start(tmp_path / "home", "--conf", str(conf))
