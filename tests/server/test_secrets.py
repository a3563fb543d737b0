"""Search for secrets of a real ``afterglow serve`` in everything that it shows to others."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import jwt
import pulsar
import pytest
from tests.support.served_topics import eventually
from tests.support.servers import start_moto
from tests.support.serving import serving

from afterglow.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.serving import Served

TOKEN_SECRET = b"the secret that signs the tokens, 0123456789"
S3_SECRET = "s3-of-the-server-Zx81"
POLICY_SECRET = "s3-of-a-namespace-Qy72"
SPARK_SECRET = "s3-of-spark-Kw63"
AZURE_SECRET = "azure-of-spark-Jv54"
TRUST_SECRET = "of-the-truststore-Hu45"
"""Like real secrets, these do not contain words that Spark masks by itself."""
TOPIC = "persistent/public/default/t"
MISSING = "no-such-bucket"
LISTS = (
    "brokers/configuration",
    "brokers/configuration/runtime",
    "brokers/configuration/values",
    f"{TOPIC}/explain",
    f"{TOPIC}/stats",
    f"{TOPIC}/internalStats",
    f"{TOPIC}/offload",
    "afterglow/tiers",
)


def token() -> str:
    return jwt.encode({"sub": "admin"}, TOKEN_SECRET, algorithm="HS256")


SECRETS = {
    "tokenSecretKey": base64.b64encode(TOKEN_SECRET).decode(),
    "tokenSecretKey, decoded": TOKEN_SECRET.decode(),
    "s3ManagedLedgerOffloadCredentialSecret": S3_SECRET,
    "credential secret of a policy": POLICY_SECRET,
    "spark.hadoop.fs.s3a.secret.key": SPARK_SECRET,
    "spark.hadoop.fs.azure.account.key": AZURE_SECRET,
    "spark.ssl.trustStorePassword": TRUST_SECRET,
    "signature of the broker's own token": token().rpartition(".")[2],
}


def found_in(text: str) -> list[str]:
    """Names of the secrets that a text contains."""
    return [name for name, secret in SECRETS.items() if secret in text]


def command_lines(root: int) -> list[str]:
    """Command lines of a process and all its descendants."""
    parents, lines = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text()
            lines[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        parents[int(path.name)] = int(stat.rpartition(")")[2].split()[1])
    tree = {root}
    while more := {child for child, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return [lines[process] for process in tree if process in lines]


def ask(served: Served, method: str, path: str, body: object = None) -> str:
    """The response of the admin API, also of a refused call."""
    request = urllib.request.Request(
        served.admin_url + path,
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {token()}", "Content-Type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())
    except HTTPError as refused:
        return refused.read().decode()


def command(served: Served, *args: str) -> str:
    """The output of a command, stdout and stderr."""
    environ = {**os.environ, "AFTERGLOW_ADMIN_URL": served.admin_url, "AFTERGLOW_TOKEN": token()}
    line = [sys.executable, "-m", "afterglow", *args]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=300, env=environ)
    return done.stdout + done.stderr


def spark_pages() -> dict[str, str]:
    """Pages of Spark's UI about its application."""
    base = f"http://127.0.0.1:{UI_PORT}"
    (application,) = json.loads(page(f"{base}/api/v1/applications"))
    api = f"{base}/api/v1/applications/{application['id']}"
    paths = [f"{api}/{name}" for name in ("environment", "jobs", "stages?details=true", "executors", "storage/rdd")]
    paths += [f"{base}/{name}/" for name in ("jobs", "stages", "storage", "environment", "executors")]
    failed = [job for job in json.loads(page(f"{api}/jobs")) if job["status"] == "FAILED"]
    paths += [f"{base}/jobs/job/?id={job['jobId']}" for job in failed]
    return {path.removeprefix(base): page(path) for path in paths}


def objects(conf: Path) -> dict[str, str]:
    """The content of the bucket."""
    settings = dict(line.split("=", 1) for line in conf.read_text().splitlines())
    endpoint = settings["s3ManagedLedgerOffloadServiceEndpoint"]
    store = open_store("s3://topics", endpoint=endpoint, region="us-east-1", access_key="server", secret_key=S3_SECRET)
    found = {f"object {row.key}": str(bytes(store.get(row.key)), "latin-1") for row in store.list()}
    assert found
    return found


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


UI_PORT = free_port()


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[Path]:
    with start_moto() as store:
        store.create_bucket("topics")
        path = tmp_path / "broker.conf"
        settings: dict[str, Any] = {
            "authenticationEnabled": "true",
            "authenticationProviders": "token",
            "superUserRoles": "admin",
            "tokenSecretKey": SECRETS["tokenSecretKey"],
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"token:{token()}",
            "s3ManagedLedgerOffloadServiceEndpoint": store.endpoint,
            "s3ManagedLedgerOffloadRegion": "us-east-1",
            "s3ManagedLedgerOffloadCredentialId": "server",
            "s3ManagedLedgerOffloadCredentialSecret": S3_SECRET,
            "spark.hadoop.fs.s3a.secret.key": SPARK_SECRET,
            "spark.hadoop.fs.azure.account.key.archive.dfs.core.windows.net": AZURE_SECRET,
            "spark.ssl.trustStorePassword": TRUST_SECRET,
            "spark.ui.enabled": "true",
            "spark.ui.port": str(UI_PORT),
            "streamingOffloadEnabled": "true",
            "maxOffloadSegmentRolloverTimeInSeconds": "1",
            "sparkMaster": "local[1]",
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        yield path


def spark_lines(served: Served) -> list[str]:
    """The command line of Spark's JVM, after its start script has been replaced by it."""
    lines = command_lines(served.process.pid)
    return [line for line in lines if "bin/java " in line and "org.apache.spark.deploy.SparkSubmit" in line]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_no_secret_is_in_logs_processes_metrics_or_answers(conf: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "home", "--conf", str(conf), "--tier", "s3://topics") as served:
        client = pulsar.Client(served.service_url, authentication=pulsar.AuthenticationToken(token()))
        producer = client.create_producer("t")
        producer.send(b"offloaded")
        time.sleep(1.1)  # as long as a segment may be open
        producer.send(b"begins the next segment")
        eventually(lambda: bool(spark_lines(served)), lambda: served.lines, 90)
        shown = {"processes": "\n".join(command_lines(served.process.pid))}
        policy = {
            "managedLedgerOffloadDriver": "aws-s3",
            "managedLedgerOffloadBucket": MISSING,
            "s3ManagedLedgerOffloadCredentialId": "namespace",
            "s3ManagedLedgerOffloadCredentialSecret": POLICY_SECRET,
        }
        ask(served, "POST", "/admin/v2/namespaces/public/default/offloadPolicies", policy)
        shown["refused policy"] = ask(
            served,
            "POST",
            "/admin/v2/namespaces/public/default/offloadPolicies",
            {**policy, "managedLedgerOffloadThresholdInBytes": "many"},
        )
        for _ in range(3):
            producer.send(b"for a bucket that is missing")
            time.sleep(1.1)
        eventually(lambda: any(MISSING in line for line in served.lines), lambda: served.lines, 120)
        for path in LISTS:
            shown[path] = ask(served, "GET", f"/admin/v2/{path}")
        shown["metrics"] = ask(served, "GET", "/metrics")
        for args in (("topics", "policy", "t"), ("topics", "explain", "t")):
            shown[" ".join(args)] = command(served, *args)
        shown["a refused token"] = command(served, "--token", token() + "x", "topics", "list", "public/default")
        shown |= spark_pages()
        shown |= objects(conf)
        client.close()
        served.stop()
        shown["log"] = "\n".join(served.lines)
    assert "s3ManagedLedgerOffloadCredentialSecret" in shown["topics policy t"]
    assert "spark" in shown["processes"]
    assert any("fs.azure.account.key" in text for path, text in shown.items() if path.endswith("/environment"))
    assert {name: found for name, text in shown.items() if (found := found_in(text))} == {}
