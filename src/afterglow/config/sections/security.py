"""Who may connect, and how the wire is protected."""

from __future__ import annotations

from afterglow.config.choices import AuthenticationProvider
from afterglow.config.kinds import choice, flag, names, optional, several, text
from afterglow.config.quantities import duration
from afterglow.config.setting import section, setting

_PROVIDERS = several(
    choice(
        AuthenticationProvider,
        {"org.apache.pulsar.broker.authentication.AuthenticationProviderToken": AuthenticationProvider.TOKEN},
    ),
    "`token` (also as `org.apache.pulsar.broker.authentication.AuthenticationProviderToken`)",
)

PULSAR_AUTHORIZATION = "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider"
"""Name of the one authorization provider whose rules are enforced."""


@section
class Security:
    """Authentication and TLS."""

    authentication_enabled: bool = setting(
        flag(), default=False, doc="Whether clients must prove who they are, on every port."
    )
    authentication_providers: tuple[AuthenticationProvider, ...] = setting(
        _PROVIDERS, default=(), doc="Ways in which a client may prove who it is; one that is not supported is an error."
    )
    authentication_refresh_check_seconds: int = setting(
        duration(minimum=1),
        default=60,
        doc="Seconds between checks for expired credentials on open connections.",
        inert=True,
    )
    authorization_enabled: bool = setting(
        flag(),
        default=False,
        doc="Whether a role needs permission to produce, consume, look up and administer; needs authentication.",
    )
    authorization_provider: str = setting(
        text(),
        default=PULSAR_AUTHORIZATION,
        doc="The rules by which roles have permission. Another class than Pulsar's own is an error where "
        "authorization is enabled.",
    )
    authorization_allow_wildcards_matching: bool = setting(
        flag(),
        default=False,
        doc="Whether a grant to `prefix*` or `*suffix` counts for every role that matches.",
    )
    super_user_roles: tuple[str, ...] = setting(names(), default=(), doc="Roles that may do everything.")
    allowed_tiers: tuple[str, ...] = setting(
        names(),
        default=(),
        doc="Tiers that roles other than superusers may name in offload policies, besides the server's own: "
        "`file:///path`, `s3://bucket[/prefix][?endpoint=URL&region=NAME]`, each with all below it; see "
        "[security](security.md).",
    )
    anonymous_user_role: str | None = setting(
        optional(text()), default=None, doc="Role of clients that present no credentials. Nothing: they are refused."
    )
    authenticate_metrics_endpoint: bool = setting(
        flag(), default=False, doc="Whether `/metrics` asks for credentials too."
    )
    token_secret_key: str | None = setting(
        optional(text()),
        default=None,
        doc="Symmetric key that signs tokens: `file:///path`, `data:;base64,…`, or the base64 text itself.",
        secret=True,
    )
    token_public_key: str | None = setting(
        optional(text()),
        default=None,
        doc="Public key that checks tokens: `file:///path`, `data:;base64,…`, or the base64 text itself.",
    )
    token_public_alg: str = setting(text(), default="RS256", doc="Signature algorithm of the public key.")
    token_auth_claim: str = setting(text(), default="sub", doc="Claim of the token that names the role.")
    token_audience_claim: str | None = setting(
        optional(text()), default=None, doc="Claim that must hold the audience, if any."
    )
    token_audience: str | None = setting(
        optional(text()), default=None, doc="Audience that the audience claim must name."
    )
    token_allowed_clock_skew_seconds: int = setting(
        duration(), default=0, doc="Seconds by which clocks may differ when a token's times are checked."
    )
    tls_certificate_file_path: str | None = setting(
        optional(text()), default=None, doc="PEM file with the server's certificate chain."
    )
    tls_key_file_path: str | None = setting(
        optional(text()), default=None, doc="PEM file with the server's private key."
    )
    tls_trust_certs_file_path: str | None = setting(
        optional(text()), default=None, doc="PEM file with the authorities that may have signed a client's certificate."
    )
    tls_require_trusted_client_cert_on_connect: bool = setting(
        flag(), default=False, doc="Whether a client without a trusted certificate is refused."
    )
    tls_protocols: tuple[str, ...] = setting(
        names(), default=(), doc="TLS versions to offer, such as `TLSv1.3`. Nothing: what the platform holds safe."
    )
    tls_ciphers: tuple[str, ...] = setting(
        names(), default=(), doc="Cipher suites to offer. Nothing: what the platform holds safe."
    )
    tls_cert_refresh_check_duration_sec: int = setting(
        duration(), default=300, doc="Seconds between looks for a renewed certificate. 0: at every connection."
    )
    broker_client_authentication_plugin: str | None = setting(
        optional(text()),
        default=None,
        doc="How offload tasks that read over the protocol prove who they are: "
        "`org.apache.pulsar.client.impl.auth.AuthenticationToken` or nothing. Nothing together with parameters means a "
        "token too.",
    )
    broker_client_authentication_parameters: str | None = setting(
        optional(text()),
        default=None,
        doc="The token of those tasks: `token:…` or `file:///path`. Its role must be allowed to consume the topics; "
        "one of superUserRoles is.",
        secret=True,
    )
    broker_client_tls_enabled: bool = setting(
        flag(), default=False, doc="Whether those tasks use brokerServicePortTls also where a plain port is open."
    )
    broker_client_trust_certs_file_path: str | None = setting(
        optional(text()),
        default=None,
        doc="PEM file with the authorities that those tasks trust; its content travels with them. Nothing: those that "
        "the system trusts.",
    )
    tls_hostname_verification_enabled: bool = setting(
        flag(),
        default=True,
        doc="Whether the server's certificate must name the advertised address, for those tasks. Pulsar's default is "
        "false.",
    )
