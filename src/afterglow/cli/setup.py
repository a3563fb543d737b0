"""``afterglow env``, ``certs`` and ``man``: what other programs on this machine need, made from what is installed."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from afterglow import __version__
from afterglow.cli.app import DONE, app
from afterglow.cli.output import Output
from afterglow.errors import ConfigError, MissingDependency

_DAYS: Final = 365


@app.command()
def env() -> int:
    """Print shell commands that set the Java and the Python which Spark needs, for spark-submit and notebooks.

    Example: afterglow env > env.sh && . ./env.sh
    """
    from importlib.util import find_spec  # noqa: PLC0415 - not needed for --help

    from afterglow.spark.java import find_java  # noqa: PLC0415

    found = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    spark = find_spec("pyspark")
    if spark is not None and spark.submodule_search_locations:
        found["SPARK_HOME"] = spark.submodule_search_locations[0]
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}"
    for name, value in found.items():
        rest = '"$PATH"' if name == "PATH" else ""
        typer.echo(f"export {name}={shlex.quote(value)}{rest}")
    return DONE


@app.command()
def certs(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIRECTORY", help="New or empty directory.")],
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address of the server, repeatable. Default: localhost and 127.0.0.1."),
    ] = None,
) -> int:
    """Create a certificate authority and a certificate for tests with TLS, valid for a year.

    Example: afterglow certs --output ./certs --host broker.example --host 10.0.0.5
    """
    names = host or ["localhost", "127.0.0.1"]
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is not an empty directory; give a new one")
    files = _certificates(names)
    output.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, data in files.items():
        with os.fdopen(os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
    at = output.absolute()
    Output(as_json=False).say(
        f"wrote {', '.join(files)} to {output}: for tests only, since ca.key is not protected\n"
        f"server: --set tlsCertificateFilePath={at}/server.pem --set tlsKeyFilePath={at}/server.key "
        f"--set brokerServicePortTls=6651\n"
        f"clients: trust {at}/ca.pem"
    )
    return DONE


def _certificates(hosts: list[str]) -> dict[str, bytes]:
    """Authority and server certificate with their keys, in PEM, by file name."""
    try:
        from cryptography import x509  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415
        from cryptography.x509.oid import NameOID  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency.of_extra("certificates need the package cryptography", "serve") from error

    def name_of(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def built(subject: str, key: ec.EllipticCurvePrivateKey, extension: Any) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder(name_of("Afterglow test CA"), name_of(subject), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=key is authority, path_length=None), critical=True)
        )
        if extension is not None:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)

    def general(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    def private(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    return {
        "ca.pem": built("Afterglow test CA", authority, None),
        "ca.key": private(authority),
        "server.pem": built(hosts[0], server, x509.SubjectAlternativeName([general(host) for host in hosts])),
        "server.key": private(server),
    }


@app.command()
def man(context: typer.Context) -> int:
    """Print a manual page, made from the help of all commands.

    Example: afterglow man > ~/.local/share/man/man1/afterglow.1
    """
    typer.echo(manual_page(context.find_root().command))
    return DONE


def manual_page(root: Any) -> str:
    """The manual page of a command line, in roff."""
    lines = [
        f'.TH AFTERGLOW 1 "" "Afterglow {__version__}"',
        ".SH NAME",
        f"afterglow \\- {_roff(root.help)}",
        ".SH SYNOPSIS",
        ".B afterglow",
        "[OPTIONS] COMMAND [ARGS]...",
        ".SH OPTIONS",
        *_options(root),
        ".SH COMMANDS",
    ]
    for path, command in _commands(root, ""):
        arguments = [argument.metavar or argument.name.upper() for argument in _arguments(command)]
        lines.append(f'.SS "{_roff(" ".join([path, *arguments]))}"')
        lines += _paragraphs(command.help or "")
        lines += _options(command)
    return "\n".join(lines)


def _commands(group: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in sorted(group.commands):
        command = group.commands[name]
        path = f"{prefix}{name}"
        if not command.hidden:
            found += _commands(command, f"{path} ") if hasattr(command, "commands") else [(path, command)]
    return found


def _arguments(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "argument"]


def _options(command: Any) -> list[str]:
    lines = []
    for parameter in command.params:
        record = parameter.get_help_record(typer.Context(command))
        if record is not None and parameter.param_type_name == "option":
            lines += [".TP", f".B {_roff(record[0])}", _roff(record[1])]
    return lines


def _paragraphs(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += [".PP", _roff(" ".join(paragraph.split()))]
    return lines


def _roff(text: str) -> str:
    """Text that roff prints as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
