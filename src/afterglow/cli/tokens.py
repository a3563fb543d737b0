"""``afterglow tokens``: secret keys and signed tokens, in the format of ``pulsar tokens``."""

from __future__ import annotations

import os
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from afterglow.cli.app import DONE, FAILED, app
from afterglow.cli.help_format import HelpGroup
from afterglow.cli.output import Output
from afterglow.cli.parameters import read_seconds
from afterglow.errors import ConfigError

TOKENS = typer.Typer(
    name="tokens", help="Create and show tokens for authentication.", cls=HelpGroup, no_args_is_help=True
)
app.add_typer(TOKENS)

_KEY_BYTES: Final = 32
_SecretKey = Annotated[
    str | None,
    typer.Option(
        "--secret-key", metavar="KEY", help="Key as in tokenSecretKey: file:///path, data:;base64,… or base64."
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@TOKENS.command("create-secret-key")
def create_secret_key(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="New file, which only its owner may read.")
    ],
) -> int:
    """Create a secret key, for the setting tokenSecretKey.

    Example: afterglow tokens create-secret-key --output secret.key
    """
    try:
        with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
    except FileExistsError:
        raise ConfigError(f"{output} exists already; tokens of a replaced key stop working: give a new file") from None
    Output(as_json=False).say(
        f"wrote {output}; start the server with --set tokenSecretKey={output.absolute().as_uri()}"
    )
    return DONE


@TOKENS.command("create")
def create(
    *,
    secret_key: _SecretKey = None,
    subject: Annotated[str, typer.Option("--subject", "-s", metavar="ROLE", help="The role of the token.")],
    expiry: Annotated[
        Any, typer.Option("--expiry-time", "-e", metavar="TIME", parser=read_seconds, help="Life time, such as 30d.")
    ] = None,
) -> int:
    """Create a token, signed by a secret key, and print it.

    Example: afterglow tokens create --secret-key file:///etc/afterglow/secret.key --subject alice --expiry-time 30d
    """
    import jwt  # noqa: PLC0415 - an extra, which the next module reports if it is missing

    claims: dict[str, Any] = {"sub": subject}
    if expiry is not None:
        claims["exp"] = int(time.time()) + int(expiry)
    typer.echo(jwt.encode(claims, _key(secret_key), algorithm="HS256"))
    return DONE


@TOKENS.command("show")
def show(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token, or file:///path to it.")],
    *,
    secret_key: _SecretKey = None,
    as_json: _Json = False,
) -> int:
    """Show the header and the claims of a token; with a key exit 1 unless the key has signed it and it is valid.

    Example: afterglow tokens show file:///etc/afterglow/alice.token
    """
    from afterglow.broker.tokens import TokenVerifier  # noqa: PLC0415 - not needed for --help
    from afterglow.config import load_conf  # noqa: PLC0415
    from afterglow.format.wire import Refused  # noqa: PLC0415
    from afterglow.metadata.cluster_credentials import read_token  # noqa: PLC0415

    text = read_token(token) or ""
    row = _content(text)
    valid: bool | None = None
    if secret_key is not None:
        verifier = TokenVerifier(load_conf(overrides={"tokenSecretKey": secret_key}))
        try:
            verifier.verify(text)
            valid = True
        except Refused as refused:
            valid, row["problem"] = False, str(refused)
    row["signature"] = {None: "not verified: give --secret-key", True: "valid", False: "refused"}[valid]
    out = Output(as_json=as_json)
    if as_json:
        out.json(row)
    else:
        out.record({name: _time(name, value) for name, value in row.items()}, absent="")
    return FAILED if valid is False else DONE


def _content(token: str) -> dict[str, Any]:
    import jwt  # noqa: PLC0415 - an extra

    try:
        header = jwt.get_unverified_header(token)
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError as error:
        raise ConfigError("this is not a token (JWT); give a token, or file:///path to one") from error
    return {"algorithm": header.get("alg"), **claims}


def _time(name: str, value: Any) -> Any:
    if name in {"exp", "nbf", "iat"} and isinstance(value, int | float):
        return f"{value} ({datetime.fromtimestamp(value, UTC):%Y-%m-%dT%H:%M:%SZ})"
    return value


def _key(secret_key: str | None) -> bytes:
    """The bytes of a secret key that is long enough.

    Raises:
        ConfigError: It is missing, or malformed, or too short.
        MissingDependency: PyJWT is not installed.
    """
    from afterglow.broker.tokens import secret_key_of  # noqa: PLC0415 - not needed for --help

    if secret_key is None:
        raise ConfigError("--secret-key is missing; create one with `afterglow tokens create-secret-key`")
    return secret_key_of("--secret-key", secret_key)
