"""Every request passes the guard: hosts, sessions, origins, tokens, sizes, headers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from ottla.console.app import local
from ottla.console.guard import BODY_BYTES_MAX, POLICY
from ottla.console.registry import PAGES
from ottla.console.serving import UnsafeListenerError, hosts_of, require_safe
from ottla.testing import EmbeddedBroker
from tests.harness.console.over_http import HOST, ORIGIN, TOKEN, User, anonymous, settings

ADDRESSES = [
    path
    for page in PAGES
    for path in (
        page.path,
        f"{page.path}.json",
        *(f"{page.path}/part/{each.name}" for each in page.parts),
        *(f"{page.path}/{each.name}" for each in page.changes),
        *(f"{page.path}/download/{each.name}" for each in page.downloads),
    )
]
FORMS = [*(f"{page.path}/{each.name}" for page in PAGES for each in page.changes), "/logout"]


@pytest.fixture(scope="module")
def stranger(console_broker: EmbeddedBroker) -> Iterator[TestClient]:
    with anonymous(settings(console_broker.bootstrap_servers)) as client:
        yield client


@pytest.mark.parametrize("path", ADDRESSES)
def test_no_page_without_a_session(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert answer.headers["content-security-policy"] == POLICY


def test_a_wrong_token_opens_nothing(stranger: TestClient) -> None:
    assert stranger.get("/", params={"token": f"{TOKEN}x"}).status_code == 403
    assert not stranger.cookies


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(console_broker: EmbeddedBroker) -> None:
    with anonymous(settings(console_broker.bootstrap_servers)) as client:
        answer = client.get("/topics", params={"q": "a b", "token": TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/topics?q=a+b")
        cookie = answer.headers["set-cookie"]
        assert all(each in cookie for each in ("HttpOnly", "Secure", "SameSite=strict", "Path=/", "__Host-ottla-"))
        assert TOKEN not in cookie


def test_another_host_name_is_refused(visitor: User) -> None:
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:1", ""):
        assert visitor.client.get("/overview", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("path", FORMS)
def test_no_form_without_origin_and_token(visitor: User, path: str) -> None:
    form, good = {"token": visitor.token, "step": "apply"}, {"origin": ORIGIN}
    for origin in (None, "null", "https://evil.example", f"http://{HOST}", f"{ORIGIN}.evil.example"):
        headers = {} if origin is None else {"origin": origin}
        assert visitor.client.post(path, data=form, headers=headers).status_code == 403, origin
    for token in ({}, {"token": ""}, {"token": "x"}):
        assert visitor.client.post(path, data={"step": "apply", **token}, headers=good).status_code == 403
    other = {"content-type": "text/plain", **good}
    assert visitor.client.post(path, content=b"token=x", headers=other).status_code == 415


def test_a_large_form_is_refused(visitor: User) -> None:
    headers = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}
    body = b"a" * (BODY_BYTES_MAX + 1)
    assert visitor.client.post("/logout", content=body, headers=headers).status_code == 413
    assert visitor.client.post("/logout", content=b"a=%ff", headers=headers).status_code == 400
    assert visitor.client.put("/overview").status_code == 405


def test_a_session_ends_by_logging_out(console_broker: EmbeddedBroker) -> None:
    with anonymous(settings(console_broker.bootstrap_servers)) as client:
        user = User(client)
        cookie = dict(client.cookies)
        assert user.post("/logout", {}).status_code == 303
        client.cookies.update(cookie)
        assert client.get("/overview").status_code == 401


def test_files_may_be_kept_and_pages_may_not(visitor: User) -> None:
    assert "immutable" in visitor.client.get("/static/console.css").headers["cache-control"]
    assert visitor.client.get("/topics").headers["cache-control"] == "no-store"
    assert visitor.client.get("/static/../app.py").status_code == 404


def test_other_addresses_than_loopback_need_tls_and_logins() -> None:
    require_safe("127.0.0.1", is_https=False, mechanism=None)
    require_safe("::1", is_https=False, mechanism=None)
    require_safe("0.0.0.0", is_https=True, mechanism="PLAIN")
    with pytest.raises(UnsafeListenerError, match="without TLS"):
        require_safe("0.0.0.0", is_https=False, mechanism="PLAIN")
    with pytest.raises(UnsafeListenerError, match="without logins"):
        require_safe("console.example", is_https=True, mechanism=None)
    assert hosts_of("::1", 80, (), is_https=False) == {"[::1]:80", "[::1]", "localhost:80", "localhost"}


def test_a_login_leads_only_to_pages_of_the_console() -> None:
    assert local("/topics?q=a") == "/topics?q=a"
    assert [local(each) for each in ("//evil.example", "https://evil.example", "/\\evil.example", None)] == ["/"] * 4


def test_users_log_in_with_the_logins_of_the_cluster() -> None:
    with (
        EmbeddedBroker(sasl="plain", users={"ann": "secret"}) as broker,
        anonymous(settings(broker.bootstrap_servers, mechanism="PLAIN")) as client,
    ):
        assert client.get("/topics?q=a").headers["location"] == "/login?next=%2Ftopics%3Fq%3Da"
        assert "User" in client.get("/login").text
        wrong = client.post("/login", data={"user": "ann", "password": "x"}, headers={"origin": ORIGIN})
        assert wrong.status_code == 403
        assert not client.cookies
        form = {"user": "ann", "password": "secret", "next": "/topics"}
        assert client.post("/login", data=form).status_code == 403
        right = client.post("/login", data=form, headers={"origin": ORIGIN})
        assert (right.status_code, right.headers["location"]) == (303, "/topics")
        assert "as ann" in client.get("/topics").text
