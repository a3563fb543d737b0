from __future__ import annotations

import logging
from pathlib import Path

import pytest

from afterglow.config import (
    AuthenticationProvider,
    BrokerConfig,
    CompressionType,
    DamagePolicy,
    EntryInterceptor,
    Origin,
    OriginKind,
    ReadPriority,
    TopicType,
    load_conf,
    parse_conf,
)
from afterglow.errors import ConfigError

STOCK = Path(__file__).parent / "stock"

SITE_CONF = """\
### a site's own file
clusterName = eu-west
brokerServicePort=6650
brokerServicePortTls=6651
webServicePort=
bindAddress=0.0.0.0
advertisedAddress=pulsar.example.org
zookeeperServers=zk1:2181,\\
    zk2:2181
metadataStoreUrl=zk:zk1:2181,zk2:2181/pulsar

! who may come in
authenticationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken
tokenSecretKey=file:///etc/pulsar/secret.key
superUserRoles=admin, operator
tlsCertificateFilePath=/etc/pulsar/broker.pem
tlsKeyFilePath=/etc/pulsar/broker.key

allowAutoTopicCreationType=partitioned
defaultNumPartitions=4
metadataStoreOperationTimeoutSeconds=20
brokerEntryMetadataInterceptors=org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor
managedLedgerInfoCompressionType=LZ4
managedLedgerCacheSizeMB=
managedLedgerMaxSizePerLedgerMbytes: 1g
managedLedgerDefaultMarkDeleteRateLimit=0.2
managedLedgerDigestType=CRC32C

managedLedgerOffloadDriver=aws-s3
s3ManagedLedgerOffloadBucket=archive
managedLedgerOffloadAutoTriggerSizeThresholdBytes=10g
managedLedgerOffloadDeletionLagMs=3600000
managedLedgerDataReadPriority=tiered-first
managedLedgerOffloadExtraConfigafterglowFormat=blocks
managedLedgerOffloadExtraConfigtimeout=
streamingOffloadEnabled=true
maxSizePerOffloadSegmentMbytes=64
maxOffloadSegmentRolloverTimeMinutes=1
"""


def test_a_site_s_file_is_read() -> None:
    config = parse_conf(SITE_CONF)
    assert config.cluster_name == "eu-west"
    assert config.broker_service_port == 6650
    assert config.broker_service_port_tls == 6651
    assert config.web_service_port is None
    assert config.metadata_store_url == "zk:zk1:2181,zk2:2181/pulsar"
    assert config.authentication_providers == (AuthenticationProvider.TOKEN,)
    assert config.super_user_roles == ("admin", "operator")
    assert config.allow_auto_topic_creation_type is TopicType.PARTITIONED
    assert config.metadata_store_operation_timeout_seconds == 20
    assert config.broker_entry_metadata_interceptors == (EntryInterceptor.INDEX,)
    assert config.managed_ledger_info_compression_type is CompressionType.LZ4
    assert config.managed_ledger_cache_size_mb == BrokerConfig().managed_ledger_cache_size_mb
    assert config.managed_ledger_max_size_per_ledger_mbytes == 1024
    assert config.managed_ledger_default_mark_delete_rate_limit == 0.2
    assert config.managed_ledger_offload_threshold_in_bytes == 10 << 30
    assert config.managed_ledger_offload_deletion_lag_in_millis == 3_600_000
    assert config.managed_ledger_offloaded_read_priority is ReadPriority.TIERED_STORAGE_FIRST
    assert config.managed_ledger_extra_configurations == (("afterglowFormat", "blocks"), ("timeout", ""))
    assert config.streaming_offload_enabled
    assert config.max_offload_segment_size_in_bytes == 64 << 20
    assert config.max_offload_segment_rollover_time_in_seconds == 60


@pytest.mark.parametrize("name", ["broker.conf", "standalone.conf"])
def test_a_stock_file_is_read_as_it_is_with_one_warning(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        config = load_conf(STOCK / name)
    assert config.broker_service_port == 6650
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.name == "afterglow.config.load"
    listed = record.getMessage().split(": ", 1)[1].split(", ")
    assert listed == sorted(listed)
    assert {"managedLedgerDigestType", "zookeeperServers"} <= set(listed)
    assert not {"brokerServicePort", "managedLedgerDataReadPriority"} & set(listed)


def test_no_warning_if_every_key_has_an_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        parse_conf("brokerServicePort=0")
    assert caplog.records == []


def test_keys_with_a_prefix_that_pulsar_passes_on_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    parse_conf("bookkeeper_anything=1\nbrokerClient_tlsTrustCertsFilePath=x")
    assert "2 settings of Apache Pulsar have no effect" in caplog.text


def test_the_misspelt_key_of_older_pulsar_releases_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    parse_conf("maxPendingPublishdRequestsPerConnection=9")
    assert "have no effect in Afterglow: maxPendingPublishdRequestsPerConnection" in caplog.text


@pytest.mark.parametrize(
    ("line", "attribute", "value"),
    [
        ("maxSizePerOffloadSegmentMbytes=64", "max_offload_segment_size_in_bytes", 64 << 20),
        ("maxOffloadSegmentSizeInBytes=1000", "max_offload_segment_size_in_bytes", 1000),
        ("maxOffloadSegmentRolloverTimeMinutes=2", "max_offload_segment_rollover_time_in_seconds", 120),
        ("maxOffloadSegmentRolloverTimeMinutes=90s", "max_offload_segment_rollover_time_in_seconds", 90),
        ("maxOffloadSegmentRolloverTimeInSeconds=5", "max_offload_segment_rollover_time_in_seconds", 5),
        ("offloadSizeInMB=3", "managed_ledger_offload_threshold_in_bytes", 3 << 20),
        ("offloadSizeInMB=-1", "managed_ledger_offload_threshold_in_bytes", -1),
        ("offloadTimeInMinutes=3", "managed_ledger_offload_threshold_in_seconds", 180),
        ("managedLedgerOffloadThresholdInBytes=7", "managed_ledger_offload_threshold_in_bytes", 7),
        ("managedLedgerOffloadAutoTriggerSizeThresholdBytes=7", "managed_ledger_offload_threshold_in_bytes", 7),
        ("managedLedgerOffloadDeletionLagInMillis=8", "managed_ledger_offload_deletion_lag_in_millis", 8),
        ("managedLedgerOffloadDeletionLagMs=", "managed_ledger_offload_deletion_lag_in_millis", None),
        (
            "managedLedgerOffloadedReadPriority=BOOKKEEPER_FIRST",
            "managed_ledger_offloaded_read_priority",
            "bookkeeper-first",
        ),
        (
            "managedLedgerDataReadPriority=bookkeeper-first",
            "managed_ledger_offloaded_read_priority",
            "bookkeeper-first",
        ),
        (
            "managedLedgerDataReadPriority=tiered-first",
            "managed_ledger_offloaded_read_priority",
            "tiered-storage-first",
        ),
        ("useBrokerTimestampsForMessageSeek=false", "broker_entry_metadata_interceptors", ()),
        ("brokerEntryMetadataInterceptors=", "broker_entry_metadata_interceptors", ()),
        ("autoSkipNonRecoverableData=true", "damaged_data_policy", DamagePolicy.SKIP_AND_REPORT),
    ],
)
def test_every_spelling_is_understood(line: str, attribute: str, value: object) -> None:
    assert getattr(parse_conf(line), attribute) == value


def test_each_value_remembers_its_origin(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# ports\nbrokerServicePort=1\nwebServicePort=2\nkeepAliveIntervalSeconds=\noffloadSizeInMB=1\n")
    config = load_conf(
        conf,
        environ={"AFTERGLOW_CONF_webServicePort": "3", "AFTERGLOW_CONF_clusterName": "c", "HOME": "x"},
        overrides={"clusterName": "d"},
    )
    assert (config.broker_service_port, config.web_service_port, config.cluster_name) == (1, 3, "d")
    assert config.origin("brokerServicePort") == Origin(OriginKind.FILE, f"{conf}:2")
    assert config.origin("webServicePort") == Origin(OriginKind.ENVIRONMENT, "AFTERGLOW_CONF_webServicePort")
    assert config.origin("clusterName") == Origin(OriginKind.ARGUMENT, "argument")
    assert config.origin("managedLedgerOffloadThresholdInBytes") == Origin(OriginKind.FILE, f"{conf}:5")
    assert config.origin("keepAliveIntervalSeconds").kind is OriginKind.DEFAULT
    shown = {row.key: (row.show(value), str(origin)) for row, value, origin in config.rows()}
    assert shown["managedLedgerOffloadThresholdInBytes"] == ("1M", f"{conf}:5")
    assert shown["maxMessageSize"] == ("5M", "default")


def test_without_a_file_the_defaults_apply() -> None:
    assert load_conf() == BrokerConfig()
    assert load_conf(environ={}, overrides={"brokerServicePort": "0"}) == BrokerConfig(broker_service_port=0)


def test_a_later_source_overrides_an_earlier_one_in_any_spelling() -> None:
    config = parse_conf(
        "maxOffloadSegmentSizeInBytes=5", environ={"AFTERGLOW_CONF_maxSizePerOffloadSegmentMbytes": "1"}
    )
    assert config.max_offload_segment_size_in_bytes == 1 << 20


def test_driver_properties_of_all_sources_are_joined() -> None:
    config = parse_conf(
        "managedLedgerExtraConfigurations=a=1,b=1\nmanagedLedgerOffloadExtraConfigc=1",
        overrides={"managedLedgerOffloadExtraConfigb": "2"},
    )
    assert config.managed_ledger_extra_configurations == (("a", "1"), ("b", "2"), ("c", "1"))


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [
        ("brokerServicPort", "brokerServicePort"),
        ("brokerserviceport", "brokerServicePort"),
        ("offloadBufferMaxByte", "offloadBufferMaxBytes"),
        ("defaultRetentionMinutes", "defaultRetentionTimeInMinutes"),
        ("streamingOffload", "streamingOffloadEnabled"),
        ("maxSizePerOffloadSegmentBytes", "maxSizePerOffloadSegmentMbytes"),
        ("s3Bucket", "s3ManagedLedgerOffloadBucket"),
        ("maxSegmentSize", "maxOffloadSegmentSizeInBytes"),
        ("webPort", "webServicePort"),
        ("managedLedgerDigest", "managedLedgerDigestType"),
    ],
)
def test_an_unknown_key_names_the_one_that_was_meant(unknown: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{unknown} \(broker\.conf:2\): no such setting; did you mean {meant}\?$"):
        parse_conf(f"brokerServicePort=0\n{unknown}=1")


@pytest.mark.parametrize("unknown", ["zzz", "--", "managedLedgerOffloadExtraConfig"])
def test_an_unknown_key_without_a_similar_one_is_refused(unknown: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{unknown} \(argument\): no such setting; "):
        load_conf(overrides={unknown: "1"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("brokerServicePort=https", "'https' is not an integer from 0 to 65535, or empty"),
        ("brokerServicePort=70000", "'70000' is not an integer from 0 to 65535, or empty"),
        ("authenticationEnabled=yes", "'yes' is not true or false"),
        ("managedLedgerDataReadPriority=cold", "'cold' is not one of bookkeeper-first, tiered-storage-first"),
        ("maxSizePerOffloadSegmentMbytes=0", r"'0' is not a size in MiB \(or with a unit, as in 64M\) of at least 1"),
        (
            "streamingOffloadPartSizeInBytes=1M",
            r"'1M' is not a size in bytes \(or with a unit, as in 64M\) from 5M to 5G",
        ),
        ("maxOffloadSegmentRolloverTimeMinutes=500ms", "'500ms' is not a duration in minutes"),
        # Pending deletes of unfinished objects are kept for 600 s, which must outlast every request.
        (
            "offloadRequestTimeoutSeconds=301",
            r"'301' is not a duration in seconds .* from 1 to 300",
        ),
        ("authenticationProviders=org.example.Athenz", "'org.example.Athenz' is not a comma-separated list of `token`"),
    ],
)
def test_an_invalid_value_is_refused_with_key_origin_and_expected_value(line: str, message: str) -> None:
    key = line.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"^{key} \(site\.conf:1\): {message}"):
        parse_conf(line, "site.conf")


def test_a_contradiction_between_settings_names_their_origins() -> None:
    lines = "managedLedgerMinLedgerRolloverTimeMinutes=20\nmanagedLedgerMaxLedgerRolloverTimeMinutes=10"
    with pytest.raises(ConfigError, match=r"Minutes \(broker.conf:1\) is greater than .*Minutes \(broker.conf:2\)"):
        parse_conf(lines)


@pytest.mark.parametrize(
    "lines",
    [
        "maxSizePerOffloadSegmentMbytes=1\nmaxOffloadSegmentSizeInBytes=1",
        "managedLedgerOffloadDeletionLagInMillis=1\nmanagedLedgerOffloadDeletionLagMs=2",
        "brokerServicePort=1\nbrokerServicePort=2",
        "managedLedgerOffloadExtraConfiga=1\nmanagedLedgerOffloadExtraConfiga=2",
        "managedLedgerExtraConfigurations=a=1,b=1\nmanagedLedgerOffloadExtraConfigb=2",
    ],
)
def test_two_different_values_of_one_setting_in_one_file_are_refused(lines: str) -> None:
    with pytest.raises(ConfigError, match=r"\(broker.conf:1\) and .* \(broker.conf:2\) set one setting to different"):
        parse_conf(lines)


def test_two_spellings_that_agree_are_accepted() -> None:
    config = parse_conf("maxSizePerOffloadSegmentMbytes=1\nmaxOffloadSegmentSizeInBytes=1048576")
    assert config.max_offload_segment_size_in_bytes == 1 << 20
    assert config.origin("maxOffloadSegmentSizeInBytes").where == "broker.conf:1"


def test_a_secret_is_not_shown_anywhere() -> None:
    config = parse_conf("s3ManagedLedgerOffloadCredentialSecret=hush")
    shown = [row.show(value) for row, value, _ in config.rows()]
    assert "hush" not in repr(config) + "".join(shown)
    with pytest.raises(ConfigError) as contradiction:
        parse_conf("tokenSecretKey=hush\ntokenSecretKey=tush")
    assert "hush" not in str(contradiction.value)


@pytest.mark.parametrize("name", ["missing.conf", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read the configuration file .*; give the path of a broker.conf"):
        load_conf(tmp_path / name)


def test_a_file_in_latin_1_is_read(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes("clusterName=é".encode("iso-8859-1"))
    assert load_conf(str(conf)).cluster_name == "é"
