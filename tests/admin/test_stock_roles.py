"""The transcript in ``docs/security.md``: what two roles may do with stock ``pulsar-admin`` and the stock client.

Where it differs, the failure shows the transcript of this run, to be pasted between the fences of the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jwt
import pulsar
import pytest
from tests.admin.test_access import SECRET, SECURE
from tests.admin.test_stock_permissions import tools_of
from tests.support.commands import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.admin.conftest import Admin
    from tests.support.java_tools import JavaTools

# The first run fetches the tools, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
T: Final = "persistent://acme/orders/t"
GRANTS: Final = {"orders-writer": "produce", "reports-reader": "consume"}
SET_UP: Final = (
    "namespaces create acme/orders",
    f"topics create {T}",
    "namespaces create acme/billing",
    "topics create persistent://acme/billing/t",
    *(f"namespaces grant-permission acme/orders --role {role} --actions {GRANTS[role]}" for role in GRANTS),
)
ADMIN: Final = (
    "topics list acme/orders",
    f"topics stats {T}",
    f"topics create-subscription {T} -s audit -m earliest",
    f"topics peek-messages {T} -s audit",
    f"topics delete {T}",
    "namespaces set-retention acme/orders -s 1G -t 1d",
    "namespaces grant-permission acme/orders --role {role} --actions consume",
    "topics stats persistent://acme/billing/t",
    "tenants list",
)
BOSS: Final = (
    "namespaces permissions acme/orders",
    "namespaces set-retention acme/orders -s 1G -t 1d",
    "namespaces set-offload-policies acme/orders -d aws-s3 -b elsewhere -r eu-west-1",
    "tenants list",
)
_REASONS: Final = {
    "it has no permission to": "no permission",
    "it is not among superUserRoles or the tenant's adminRoles": "not an admin of the tenant",
    "it is not among superUserRoles": "not a superuser",
    "nor among allowedTiers": "not among allowedTiers",
}
"""Words of a refusal, the longest first where they begin alike, and what the transcript says."""
_WIDTH: Final = 35


def line(command: str, outcome: str) -> str:
    return f"{outcome:<{_WIDTH}} {command}"


def with_admin(tools: JavaTools, role: str, commands: tuple[str, ...]) -> Iterator[str]:
    """One line for each command of ``pulsar-admin``."""
    for command in (command.format(role=role) for command in commands):
        failed = False
        try:
            printed = tools.admin(*command.split())
        except CommandFailed as error:
            printed, failed = str(error), True
        refused = next((short for words, short in _REASONS.items() if words in printed), None)
        # `topics delete` of 4.0 prints its failure and exits with 0.
        assert refused or not (failed or "Exception" in printed), printed
        yield line(f"pulsar-admin {command}", f"refused: {refused}" if refused else "done")


def with_client(admin: Admin, role: str) -> Iterator[str]:
    """One line for each use of the Python client."""
    client = pulsar.Client(
        admin.service.service_url,
        authentication=pulsar.AuthenticationToken(jwt.encode({"sub": role}, SECRET, "HS256")),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        operation_timeout_seconds=20,
    )
    uses: tuple[tuple[str, Callable[[], object]], ...] = (
        (f"client.create_producer('{T}').send(b'1')", lambda: client.create_producer(T).send(b"1")),
        (f"client.subscribe('{T}', 'mine')", lambda: client.subscribe(T, "mine")),
        (
            f"client.create_reader('{T}', MessageId.earliest)",
            lambda: client.create_reader(T, pulsar.MessageId.earliest),
        ),
        (
            "client.subscribe('persistent://acme/billing/t', 'mine')",
            lambda: client.subscribe("persistent://acme/billing/t", "mine"),
        ),
    )
    try:
        for shown, use in uses:
            try:
                use()
            except pulsar.AuthorizationError:
                yield line(shown, "refused: AuthorizationError")
            else:
                yield line(shown, "done")
    finally:
        client.close()


def test_two_roles_do_with_stock_tools_what_the_page_shows(start: Callable[..., Admin], tmp_path: Path) -> None:
    admin = start(**SECURE, authorization_enabled=True, super_user_roles=("root",))
    tools_of(admin, "root", tmp_path).admin("tenants", "create", "acme", "-r", "boss", "-c", "standalone")
    boss = tools_of(admin, "boss", tmp_path)
    boss.admin_all(SET_UP)
    shown = ["# boss, of the adminRoles of the tenant acme", *with_admin(boss, "boss", BOSS)]
    for role, action in GRANTS.items():
        shown += ["", f"# {role}, with {action} on acme/orders"]
        shown += with_client(admin, role)
        shown += with_admin(tools_of(admin, role, tmp_path), role, ADMIN)
    transcript = "\n".join(shown)
    found = re.search(r"### Two roles.*?```\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert found is not None, transcript
    assert found[1] == transcript, f"the transcript of this run:\n{transcript}"
