from __future__ import annotations

import logging
import ssl

import pytest
from tests.support.clock import ManualClock

from afterglow.broker.connection_limits import FailedHandshakes


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def failed(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> FailedHandshakes:
    caplog.set_level(logging.WARNING, "afterglow.broker.connection_limits")
    return FailedHandshakes("brokerServicePortTls", clock.monotonic)


def test_a_line_names_address_port_reason_and_fix(failed: FailedHandshakes, caplog: pytest.LogCaptureFixture) -> None:
    failed.report("10.0.0.7", alert("TLSV1_ALERT_UNKNOWN_CA"))
    (line,) = caplog.messages
    assert line.startswith("TLS handshake with 10.0.0.7 failed on brokerServicePortTls: the client does not accept")
    assert "advertisedAddress" in line
    assert line.endswith("(TLSV1_ALERT_UNKNOWN_CA)")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (alert("WRONG_VERSION_NUMBER"), "the client does not speak TLS"),
        (alert("NO_SHARED_CIPHER"), "see tlsProtocols, tlsCiphers"),
        (alert("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "no certificate that tlsTrustCertsFilePath trusts"),
        (alert("SOME_OTHER_REASON"), "SOME_OTHER_REASON"),
        (ConnectionResetError(), "the client closed the connection"),
        (ConnectionAbortedError("SSL handshake is taking longer than 60.0 seconds"), "the handshake timed out"),
    ],
)
def test_every_kind_of_failure_has_a_reason(
    failed: FailedHandshakes, caplog: pytest.LogCaptureFixture, error: OSError, reason: str
) -> None:
    failed.report("10.0.0.7", error)
    assert reason in caplog.messages[0]


def test_a_client_that_retries_is_logged_once_per_minute_with_the_number_of_attempts(
    failed: FailedHandshakes, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(59):
        failed.report("10.0.0.7", alert("TLSV1_ALERT_UNKNOWN_CA"))
        clock.advance(1)
    assert len(caplog.messages) == 1
    failed.report("10.0.0.8", alert("TLSV1_ALERT_UNKNOWN_CA"))
    failed.report("10.0.0.7", alert("HTTP_REQUEST"))
    assert len(caplog.messages) == 3
    clock.advance(1)
    failed.report("10.0.0.7", alert("TLSV1_ALERT_UNKNOWN_CA"))
    assert caplog.messages[3].endswith("(58 more since it was last logged)")


def test_any_number_of_addresses_takes_bounded_memory_and_log_lines(
    failed: FailedHandshakes, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5_000):
        failed.report(f"10.0.{number >> 8}.{number & 255}", ConnectionResetError())
    assert len(failed._throttle._logged) == len(caplog.messages) == 1001
    clock.advance(60)
    failed.report("10.1.0.0", ConnectionResetError())
    assert len(failed._throttle._logged) <= 1001
    assert caplog.messages[-1].startswith("TLS handshake with 10.1.0.0 failed")
