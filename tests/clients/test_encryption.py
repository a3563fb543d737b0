"""Encrypted payloads pass through: the broker stores and sends them as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pulsar
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from pathlib import Path


def test_an_encrypted_message_is_read_by_who_has_the_key(client: Any, topic: str, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    reader = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe(topic, "s", crypto_key_reader=reader)
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=reader)
    producer.send(b"for your eyes only")
    assert consumer.receive(20_000).data() == b"for your eyes only"
