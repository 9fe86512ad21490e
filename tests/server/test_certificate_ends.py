"""Certificates that expire: what the log says, at the start and after a new one, and what clients see."""

import datetime
import logging
import ssl
from pathlib import Path

import pytest

from ottla.client import Client, ClientError
from ottla.client.set_up import ClientSetUp
from ottla.server.certificate_ends import DAY_S, warning
from ottla.testing import EmbeddedBroker
from tests.harness.certificates import Authority
from tests.harness.waiting import soon

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("days", "level", "says"),
    [
        (30, None, ""),
        (29, logging.WARNING, "expires in 29 days, at 2026-12-09 12:00 UTC"),
        (7, logging.WARNING, "expires in 7 days"),
        (6, logging.ERROR, "expires in 6 days"),
        (1, logging.ERROR, "expires in less than 2 days"),
        (-1, logging.ERROR, "expired at 2026-11-09 12:00 UTC: clients refuse it"),
    ],
)
def test_the_log_says_how_long_a_certificate_is_valid(days: int, level: int | None, says: str) -> None:
    now_s = datetime.datetime(2026, 11, 10, 12, tzinfo=datetime.UTC).timestamp()
    found = warning("SSL", int((now_s + days * DAY_S) * 1000), now_s)
    assert (found and found[0]) == level
    assert found is None or says in found[1]


def test_a_certificate_that_has_expired_is_reported_until_it_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.server.main.RELOAD_S", 0.05)
    caplog.set_level(logging.INFO, "ottla.server")
    authority, pem = Authority(tmp_path), tmp_path / "node.pem"
    pem.write_bytes(authority.issue(HOST, days=-1).read_bytes())
    settings = {"listener.security.protocol.map": "PLAINTEXT:SSL", "ssl.keystore.location": str(pem)}
    with EmbeddedBroker(settings=settings) as broker:
        assert "The certificate of the listener PLAINTEXT expired at" in caplog.text
        tls = ClientSetUp(broker.bootstrap_servers, str(authority.file)).context()
        with pytest.raises((ClientError, ssl.SSLError), match="certificate has expired"):
            Client(broker.bootstrap_servers, tls=tls).metadata([])
        caplog.clear()
        pem.write_bytes(authority.issue(HOST).read_bytes())
        soon(lambda: "uses a new certificate" in caplog.text)
        with Client(broker.bootstrap_servers, tls=tls) as client:
            assert client.metadata([]).brokers
    with EmbeddedBroker(settings=settings):
        assert "expires in less than 2 days" in caplog.text
