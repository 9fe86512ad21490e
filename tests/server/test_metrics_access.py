"""Who may read the metrics port: HTTPS, bearer tokens, and which addresses need them. With HTTP clients of others."""

import http.client
import json
import select
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ottla.broker.config.unserved import AUTHORIZERS
from ottla.broker.config.values import BrokerSettings
from ottla.server.main import Server, ServerOptions
from ottla.server.metrics_access import MetricsAccess
from ottla.server.metrics_port import CONNECTIONS_PER_ADDRESS_MAX
from ottla.server.refusals import SettingsRefusedError
from ottla.testing.embedded import run_in_thread
from tests.harness.certificates import Authority
from tests.harness.waiting import soon

HOST = "127.0.0.1"
TOKEN = "0123456789abcdef-right"
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pems"))


@contextmanager
def measured(**settings: str) -> Iterator[Server]:
    node = run_in_thread(ServerOptions(listen=(f"{HOST}:0",), metrics=f"{HOST}:0", settings=settings))
    try:
        yield node.server
    finally:
        node.loop.call_soon_threadsafe(node.stop.set)
        node.ended.result(PATIENCE_S)
        node.thread.join()


def token_file(folder: Path, token: str = TOKEN, mode: int = 0o600) -> Path:
    file = folder / "token"
    file.write_text(f"{token}\n")
    file.chmod(mode)
    return file


def get(node: Server, path: str, token: str | None = None, tls: ssl.SSLContext | None = None) -> tuple[int, str]:
    assert node.metrics is not None
    host, port = node.metrics.address.split(":")
    made = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    if tls is not None:
        made = http.client.HTTPSConnection(host, int(port), timeout=PATIENCE_S, context=tls)
    made.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    answer = made.getresponse()
    text = answer.read().decode()
    assert (answer.status == 401) == (answer.getheader("WWW-Authenticate") == "Bearer")
    made.close()
    return answer.status, text


def test_metrics_over_tls_need_the_token(tmp_path: Path, authority: Authority) -> None:
    settings = {
        "ottla.metrics.security.protocol": "SSL",
        "ottla.metrics.token.location": str(token_file(tmp_path)),
        "ssl.keystore.location": str(authority.issue(HOST)),
        "connection.failed.authentication.delay.ms": "0",
    }
    tls = ssl.create_default_context(cafile=str(authority.file))
    with measured(**settings) as node:
        assert node.metrics is not None
        assert node.metrics.url.startswith("https://")
        for path in ("/metrics", "/share-groups", "/share-groups/jobs", "/other"):
            for wrong in (None, "0123456789abcdef-wrong", TOKEN[:-1], "", "ä"):
                assert get(node, path, wrong, tls)[0] == 401, (path, wrong)
        status, page = get(node, "/metrics", TOKEN, tls)
        assert (status, "kafka_server_" in page) == (200, True)
        assert json.loads(get(node, "/share-groups", TOKEN, tls)[1]) == {"groups": []}
        assert get(node, "/healthz", None, tls) == (200, "ok\n")
        assert get(node, "/readyz", None, tls)[0] == 200
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            get(node, "/metrics", TOKEN)  # without TLS
        curl = shutil.which("curl")
        if curl is not None:
            command = [curl, "-sSf", "--cacert", str(authority.file), "-H", f"Authorization: Bearer {TOKEN}"]
            done = subprocess.run([*command, f"{node.metrics.url}/metrics"], capture_output=True, timeout=PATIENCE_S)
            assert b"kafka_server_" in done.stdout, done.stderr


def test_a_new_token_and_a_new_certificate_are_used_without_a_restart(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ottla.server.main.RELOAD_S", 0.05)
    pem, token = tmp_path / "node.pem", token_file(tmp_path)
    pem.write_bytes(authority.issue(HOST).read_bytes())
    settings = {
        "ottla.metrics.security.protocol": "SSL",
        "ottla.metrics.token.location": str(token),
        "listener.name.metrics.ssl.keystore.location": str(pem),
    }
    tls = ssl.create_default_context(cafile=str(authority.file))
    other = Authority(tmp_path, "other")
    with measured(**settings) as node:
        assert get(node, "/metrics", TOKEN, tls)[0] == 200
        token.chmod(0o644)
        soon(lambda: "Other users can read" in caplog.text)
        assert get(node, "/metrics", TOKEN, tls)[0] == 200, "the old token stays in force"
        token_file(tmp_path, "another-token-0123456789").chmod(0o600)
        soon(lambda: get(node, "/metrics", "another-token-0123456789", tls)[0] == 200)
        assert get(node, "/metrics", TOKEN, tls)[0] == 401
        pem.write_bytes(other.issue(HOST).read_bytes())
        by_other = ssl.create_default_context(cafile=str(other.file))

        def is_new() -> bool:
            try:
                return get(node, "/healthz", None, by_other)[0] == 200
            except ssl.SSLError:
                return False

        soon(is_new)


def test_what_workers_hold_is_shown_under_acls_only(tmp_path: Path) -> None:
    """Nobody can be asked here who they are: a node with an authorizer shows no group, whether it exists or not."""
    with measured(**{"authorizer.class.name": AUTHORIZERS[0]}) as node:
        status, why = get(node, "/share-groups/jobs")
        assert status == 403
        assert "ottla share-groups inspect" in why
        assert get(node, "/share-groups") == (status, why)
        assert get(node, "/metrics")[0] == 200
    settings = {"authorizer.class.name": AUTHORIZERS[0], "ottla.metrics.token.location": str(token_file(tmp_path))}
    with measured(**settings, **{"ottla.audit.location": str(tmp_path / "audit.log")}) as node:
        assert get(node, "/share-groups", "0123456789abcdef-wrong")[0] == 401
        assert get(node, "/share-groups", TOKEN) == (403, why)
        assert get(node, "/share-groups/jobs", TOKEN) == (403, why)
    records = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(each["event"], each["listener"]) for each in records] == [("login failed", "METRICS")]
    with measured() as node:
        assert get(node, "/share-groups")[0] == 200


def test_a_wrong_token_is_answered_late(tmp_path: Path) -> None:
    settings = {
        "ottla.metrics.token.location": str(token_file(tmp_path)),
        "connection.failed.authentication.delay.ms": "300",
    }
    with measured(**settings) as node:
        began = time.monotonic()
        assert get(node, "/metrics", "0123456789abcdef-wrong")[0] == 401
        assert time.monotonic() - began >= 0.3


def test_strangers_use_up_no_connections(tmp_path: Path, authority: Authority) -> None:
    """A stranger opens connections and says nothing: the port closes those above its limit, and others are served."""
    settings = {
        "ottla.metrics.security.protocol": "SSL",
        "ssl.keystore.location": str(authority.issue(HOST)),
    }
    with measured(**settings) as node, ExitStack() as stack:
        assert node.metrics is not None
        port = int(node.metrics.address.split(":")[1])
        count = CONNECTIONS_PER_ADDRESS_MAX + 3
        idle = [stack.enter_context(socket.create_connection((HOST, port), PATIENCE_S)) for _ in range(count)]
        closed, _, _ = select.select(idle, [], [], PATIENCE_S)
        while len(closed) < 3:
            more, _, _ = select.select([each for each in idle if each not in closed], [], [], PATIENCE_S)
            assert more
            closed += more
        assert closed == idle[-3:], "the first ones stay open"
        for each in idle:
            each.close()
        tls = ssl.create_default_context(cafile=str(authority.file))

        def is_served() -> bool:
            try:
                return get(node, "/healthz", None, tls)[0] == 200
            except OSError:
                return False

        soon(is_served)


def access(host: str, folder: Path, **settings: str) -> MetricsAccess:
    return MetricsAccess(BrokerSettings.load({name.replace("_", "."): text for name, text in settings.items()}), host)


def test_a_public_address_needs_tls_and_a_token(tmp_path: Path, authority: Authority) -> None:
    token = {"ottla_metrics_token_location": str(token_file(tmp_path))}
    tls = {"ottla_metrics_security_protocol": "SSL", "ssl_keystore_location": str(authority.issue(HOST))}
    with pytest.raises(SettingsRefusedError, match=r"no TLS .* and no token"):
        access("0.0.0.0", tmp_path)
    with pytest.raises(SettingsRefusedError, match="no TLS"):
        access("0.0.0.0", tmp_path, **token)
    with pytest.raises(SettingsRefusedError, match="has no token"):
        access("0.0.0.0", tmp_path, **tls)
    access("0.0.0.0", tmp_path, **tls, **token)
    access("0.0.0.0", tmp_path, **tls, ssl_client_auth="required", ssl_truststore_location=str(authority.file))
    access("0.0.0.0", tmp_path, ottla_allow_public_plaintext="true")
    access(HOST, tmp_path)


@pytest.mark.parametrize(
    ("token", "mode", "says"),
    [
        (TOKEN, 0o640, "set its mode to 0600"),
        (TOKEN, 0o604, "set its mode to 0600"),
        ("short", 0o600, "16 characters or more"),
        ("", 0o600, "16 characters or more"),
        ("two words of sixteen", 0o600, "without spaces"),
        ("x" * 5000, 0o600, "one token"),
    ],
)
def test_a_token_that_protects_nothing_stops_the_start(tmp_path: Path, token: str, mode: int, says: str) -> None:
    with pytest.raises(SettingsRefusedError, match=says):
        access(HOST, tmp_path, ottla_metrics_token_location=str(token_file(tmp_path, token, mode)))
    with pytest.raises(SettingsRefusedError, match="can't be read"):
        access(HOST, tmp_path, ottla_metrics_token_location=str(tmp_path / "none"))
