"""Where offloaded data lives. Values of a driver's own keys win over the general ones; see :func:`driver_keys`."""

from __future__ import annotations

from afterglow.config.kinds import optional, text
from afterglow.config.quantities import GIB, MIB, size
from afterglow.config.setting import Scope, section, setting

_BLOCK = size(minimum=5 * MIB, maximum=2 * GIB - 1)
"""A V1 block is one part of an upload, and stores demand 5 MiB; Pulsar holds its size in a signed 32-bit number."""
_READ_BUFFER = size(minimum=1, maximum=2 * GIB - 1)

_OWN_PREFIX = {"aws-s3": "s3ManagedLedgerOffload", "google-cloud-storage": "gcsManagedLedgerOffload"}
_GENERAL_PREFIX = "managedLedgerOffload"


def driver_keys(driver: str, suffix: str) -> tuple[str, ...]:
    """The keys that hold a property of a driver, the one that wins first.

    Args:
        driver: Name of the driver, in any case. Only ``aws-s3`` and ``google-cloud-storage`` have keys of their own.
        suffix: ``Bucket``, ``Region``, ``ServiceEndpoint``, ``MaxBlockSizeInBytes`` or ``ReadBufferSizeInBytes``.
    """
    own = _OWN_PREFIX.get(driver.lower())
    general = _GENERAL_PREFIX + suffix
    return (general,) if own is None else (own + suffix, general)


@section
class Tier:
    """Tier.

    For the drivers `aws-s3` and `google-cloud-storage` a key that begins with `s3` or `gcs` wins over the general one;
    `S3`, `azureblob` and `aliyun-oss` use the general keys alone.
    """

    managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, doc="Bucket or container.", scope=Scope.TOPIC
    )
    managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, doc="Region of the bucket.", scope=Scope.TOPIC
    )
    managed_ledger_offload_service_endpoint: str | None = setting(
        optional(text()),
        default=None,
        doc="URL of the store, where it is not the provider's own; buckets are then addressed by path.",
        scope=Scope.TOPIC,
    )
    managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK,
        default=64 * MIB,
        doc="Size in bytes of the blocks of an offloaded ledger (format V1).",
        scope=Scope.TOPIC,
    )
    managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER, default=MIB, doc="Bytes fetched by one request of a reader.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, doc="Bucket, for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, doc="Region of the bucket, for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_service_endpoint: str | None = setting(
        optional(text()), default=None, doc="URL of the store, for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK, default=64 * MIB, doc="Block size in bytes (format V1), for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER, default=MIB, doc="Bytes fetched by one request of a reader, for `aws-s3`.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_credential_id: str | None = setting(
        optional(text()), default=None, doc="Access key id for S3. Nothing: the SDK's own chain.", scope=Scope.TOPIC
    )
    s3_managed_ledger_offload_credential_secret: str | None = setting(
        optional(text()),
        default=None,
        doc="Secret access key for S3. Nothing: the SDK's own chain.",
        scope=Scope.TOPIC,
        secret=True,
    )
    s3_managed_ledger_offload_role: str | None = setting(
        optional(text()),
        default=None,
        doc="Role to assume through STS, where no access key is given.",
        scope=Scope.TOPIC,
    )
    s3_managed_ledger_offload_role_session_name: str = setting(
        text(), default="pulsar-s3-offload", doc="Session name under which the role is assumed.", scope=Scope.TOPIC
    )
    gcs_managed_ledger_offload_bucket: str | None = setting(
        optional(text()), default=None, doc="Bucket, for `google-cloud-storage`.", scope=Scope.TOPIC
    )
    gcs_managed_ledger_offload_region: str | None = setting(
        optional(text()), default=None, doc="Region of the bucket, for `google-cloud-storage`.", scope=Scope.TOPIC
    )
    gcs_managed_ledger_offload_max_block_size_in_bytes: int = setting(
        _BLOCK, default=128 * MIB, doc="Block size in bytes (format V1), for `google-cloud-storage`.", scope=Scope.TOPIC
    )
    gcs_managed_ledger_offload_read_buffer_size_in_bytes: int = setting(
        _READ_BUFFER,
        default=MIB,
        doc="Bytes fetched by one request of a reader, for `google-cloud-storage`.",
        scope=Scope.TOPIC,
    )
    gcs_managed_ledger_offload_service_account_key_file: str | None = setting(
        optional(text()),
        default=None,
        doc="JSON file with the key of a service account. Nothing: the SDK's own chain.",
        scope=Scope.TOPIC,
    )
    file_system_uri: str | None = setting(
        optional(text()),
        default=None,
        doc="Root directory of the tier as `file:///path`, for `filesystem`.",
        key="fileSystemURI",
        scope=Scope.TOPIC,
    )
    file_system_profile_path: str | None = setting(
        optional(text()),
        default=None,
        doc="Hadoop configuration for Pulsar's own `filesystem` driver; kept and returned, and needed only to read "
        "what Pulsar wrote.",
        scope=Scope.TOPIC,
    )
