"""Permissions granted, listed and revoked by Pulsar's own ``pulsar-admin``, and what its roles may do then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jwt
import pytest
from tests.admin.test_access import SECRET, SECURE
from tests.admin.test_stock_policies import check
from tests.support.commands import CommandFailed
from tests.support.java_tools import JavaTools

from afterglow.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.admin.conftest import Admin

# The first run fetches the tools, which takes minutes.
pytestmark = [pytest.mark.pulsar, pytest.mark.timeout(900)]

NAMESPACE = "acme/orders"
TOPIC = "persistent://acme/orders/t"


def tools_of(admin: Admin, role: str, directory: Path) -> JavaTools:
    (directory / role).mkdir()
    token = jwt.encode({"sub": role}, SECRET, "HS256")
    try:
        return JavaTools(admin.service.service_url, f"http://127.0.0.1:{admin.port}", directory / role, token)
    except MissingDependency as error:
        pytest.skip(str(error))


def test_a_granted_role_may_do_what_it_was_granted(start: Callable[..., Admin], tmp_path: Path) -> None:
    admin = start(**SECURE, authorization_enabled=True, super_user_roles=("root",))
    tools_of(admin, "root", tmp_path).admin("tenants", "create", "acme", "-r", "boss", "-c", "standalone")
    boss, reader = tools_of(admin, "boss", tmp_path), tools_of(admin, "reader", tmp_path)
    check(
        boss,
        (f"namespaces create {NAMESPACE}", ""),
        (f"topics create {TOPIC}", ""),
        (f"namespaces grant-permission {NAMESPACE} --role writer --actions produce,consume", ""),
        (f"namespaces permissions {NAMESPACE}", "writer [produce, consume]"),
        (f"topics grant-permission {TOPIC} --role reader --actions consume", ""),
        (f"topics permissions {TOPIC}", "reader [consume]"),
        (f"namespaces grant-subscription-permission {NAMESPACE} --subscription kept --roles writer", ""),
        (f"namespaces subscription-permission {NAMESPACE}", "kept [writer]"),
        ("tenants delete acme", "it is not among superUserRoles"),
    )
    no = "role 'reader' may not make this call"
    check(
        reader,
        (f"topics stats {TOPIC}", '"msgRateIn"'),
        (f"topics create-subscription {TOPIC} -s open", ""),
        (f"topics create-subscription {TOPIC} -s kept", no),
        (f"topics subscriptions {TOPIC}", "open"),
        (f"topics delete {TOPIC}", no),
        (f"topics grant-permission {TOPIC} --role reader --actions produce", no),
    )
    check(
        boss,
        (f"topics revoke-permission {TOPIC} --role reader", ""),
        (f"namespaces revoke-permission {NAMESPACE} --role writer", ""),
        (f"namespaces revoke-subscription-permission {NAMESPACE} --subscription kept --role writer", ""),
        (f"namespaces subscription-permission {NAMESPACE}", ""),
        (f"namespaces permissions {NAMESPACE}", ""),
        (f"topics permissions {TOPIC}", "Goodbye!"),  # nothing, at the end of the session
    )
    with pytest.raises(CommandFailed, match=no):
        reader.admin("topics", "stats", TOPIC)
