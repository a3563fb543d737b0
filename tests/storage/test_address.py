from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from afterglow.errors import ConfigError, MissingDependency, NotSupported
from afterglow.storage import PrefixedStore, RetryingStore, open_store, s3_client
from afterglow.storage.s3 import S3Store

if TYPE_CHECKING:
    from pathlib import Path

_KEYS = {"access_key": "AKEXAMPLE", "secret_key": "very-secret", "session_token": "token-secret"}


def test_a_directory_is_opened_by_its_url(tmp_path: Path) -> None:
    root = tmp_path / "with space"
    root.mkdir()
    for url in (root.as_uri(), f"file://{root}"):
        store = open_store(url)
        store.put("a", b"data")
        assert (root / "a").read_bytes() == b"data"
        assert open_store(store.url).head("a").size_bytes == 4


def test_a_directory_is_made_when_asked(tmp_path: Path) -> None:
    open_store((tmp_path / "new").as_uri(), create="true").put("a", b"")
    assert (tmp_path / "new/a").exists()


def test_the_same_memory_name_is_the_same_store() -> None:
    open_store("memory://test-address").put("p/a", b"data")
    assert bytes(open_store("memory://test-address").get("p/a")) == b"data"
    assert bytes(open_store("memory://test-address/p").get("a")) == b"data"
    assert open_store("memory://test-address/p/").url == "memory://test-address/p"
    assert not list(open_store("memory://test-address-other").list())


def test_a_bucket_gets_its_prefix_retries_and_options() -> None:
    url = "s3://bucket/some/prefix/"
    options = {"endpoint": "http://127.0.0.1:1", "path_style": "yes", "read_timeout_s": "2.5", "max_connections": "7"}
    store = open_store(url, retry_deadline_s="9", sse=None, **options, **_KEYS)
    assert isinstance(store, PrefixedStore)
    assert store.url == "s3://bucket/some/prefix"
    retrying = store.inner
    assert isinstance(retrying, RetryingStore)
    assert retrying.policy.deadline_s == 9.0
    bucket = retrying.inner
    assert isinstance(bucket, S3Store)
    assert (bucket._options.path_style, bucket._options.read_timeout_s, bucket._options.max_connections) == (
        True,
        2.5,
        7,
    )
    assert isinstance(open_store("s3://bucket", retry_deadline_s=0), S3Store)


def test_no_secret_shows_in_repr_or_errors() -> None:
    store = open_store("s3://bucket/p", **_KEYS)
    shown = repr(store) + store.url + repr(pickle.loads(pickle.dumps(store)))
    with pytest.raises(ConfigError) as raised:
        open_store("s3://bucket", secret_key="very-secret", sesion_token="token-secret")
    shown += str(raised.value)
    assert not [secret for secret in _KEYS.values() if secret in shown]


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("s4://bucket", "did you mean s3://"),
        ("fille:///x", "did you mean file://"),
        ("bucket/path", "use one of file://, s3://"),
        ("/just/a/path", "use one of"),
        ("file://relative", "write file:///path"),
        ("file://", "write file:///path"),
        ("s3://", r"write s3://bucket\[/prefix\]"),
        ("s3:///x", r"write s3://bucket\[/prefix\]"),
    ],
)
def test_a_wrong_address_says_what_to_write(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "options", "hint"),
    [
        ("s3://b", {"endpont": "x"}, "did you mean endpoint"),
        ("s3://b", {"retry_deadline": "1"}, "did you mean retry_deadline_s"),
        ("file:///x", {"creat": "1"}, "did you mean create"),
        ("memory://x", {"region": "1"}, "no options"),
        ("s3://b", {"endpoint": "127.0.0.1:9000"}, "write http://host:port"),
        ("s3://b", {"access_key": "x"}, "together"),
        ("s3://b", {"session_token": "x"}, "needs access_key"),
        ("s3://b", {"sse": "aes"}, "AES256"),
        ("s3://b", {"sse_kms_key_id": "k"}, "needs sse=aws:kms"),
        ("s3://b", {"read_timeout_s": "soon"}, "a number"),
        ("s3://b", {"read_timeout_s": "0"}, "above 0"),
        ("s3://b", {"max_connections": "1.5"}, "a whole number"),
        ("s3://b", {"path_style": "maybe"}, "true or false"),
    ],
)
def test_a_wrong_option_says_what_is_right(url: str, options: dict[str, str], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        open_store(url, **options)


@pytest.mark.parametrize("scheme", ["az", "gs"])
def test_reserved_schemes_say_so(scheme: str) -> None:
    with pytest.raises(NotSupported, match="not available in this release"):
        open_store(f"{scheme}://container/prefix")


def test_a_missing_sdk_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "find_spec", lambda name: None if name == "obstore" else object())
    with pytest.raises(MissingDependency, match=r"needs obstore; .* pip install 'boto3>=\S+' 'obstore>="):
        open_store("s3://bucket")


def test_the_sdks_are_not_imported_before_they_are_needed() -> None:
    code = (
        "import sys; from afterglow.storage import open_store; open_store('s3://bucket');"
        "sys.exit(bool({'boto3', 'botocore', 'obstore', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
