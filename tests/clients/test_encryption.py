"""Encrypted payloads pass through: the broker stores and sends them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pulsar
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.serving import Served


def crypto_key_reader(directory: Path) -> Any:
    """A new pair of keys."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = directory / "private.pem", directory / "public.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return pulsar.CryptoKeyReader(str(public), str(private))


def test_an_encrypted_message_is_read_by_who_has_the_key(client: Any, topic: str, tmp_path: Path) -> None:
    reader = crypto_key_reader(tmp_path)
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader)
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=reader)
    producer.send(b"for your eyes only")
    assert consumer.receive(20_000).data() == b"for your eyes only"


def test_messages_without_their_key_are_logged_once_per_producer_on_one_line(
    served: Served, client: Any, topic: str, tmp_path: Path
) -> None:
    reader = crypto_key_reader(tmp_path)
    consumer = client.subscribe(topic, "s", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.DISCARD)
    before = len(served.lines)
    for name in ("first", "second"):
        producer = client.create_producer(
            topic, producer_name=name, encryption_key="k", crypto_key_reader=reader, batching_enabled=False
        )
        for _ in range(20):
            producer.send(b"for your eyes only")
    client.create_producer(topic, producer_name="open").send(b"for everyone")
    assert consumer.receive(20_000).data() == b"for everyone"  # all before it were acknowledged by then
    consumer.close()
    logged = [line for line in served.lines[before:] if topic in line]
    assert len(logged) == 2
    for line, name in zip(logged, ("first", "second"), strict=True):
        assert "could not read" in line
        assert f"of producer {name}: DecryptionError" in line
    assert not any("ledgerId" in line for line in served.lines[before:])
