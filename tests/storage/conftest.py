from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from tests.support.servers import ServerUnavailable, start_moto, start_versitygw

from afterglow.storage.s3 import S3Store
from afterglow.storage.s3_client import S3Options
from afterglow.storage.wrapper import PrefixedStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.servers import S3Server

    from afterglow.storage import ObjectStore


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with start_moto() as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with start_versitygw(tmp_path_factory.mktemp("versitygw")) as server:
            yield server
    except ServerUnavailable as reason:
        pytest.skip(str(reason))


def bucket_of(server: S3Server) -> S3Store:
    bucket = f"bucket-{uuid.uuid4()}"
    server.create_bucket(bucket)
    return S3Store(bucket, S3Options(server.endpoint, server.region, server.access_key, server.secret_key))


@pytest.fixture(scope="session")
def moto_bucket(moto: S3Server) -> S3Store:
    """One bucket for all tests: opening boto3's client costs more than most of them."""
    return bucket_of(moto)


@pytest.fixture(scope="session")
def versitygw_bucket(versitygw: S3Server) -> S3Store:
    return bucket_of(versitygw)


@pytest.fixture
def moto_store(moto_bucket: S3Store) -> ObjectStore:
    """An empty store."""
    return PrefixedStore(moto_bucket, str(uuid.uuid4()))


@pytest.fixture
def versitygw_store(versitygw_bucket: S3Store) -> ObjectStore:
    return PrefixedStore(versitygw_bucket, str(uuid.uuid4()))
