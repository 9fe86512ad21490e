"""Changes of users, ACLs and quotas: previews that count who is affected; passwords in no page, address or log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from ottla.client import Client
from ottla.client.errors import ClientError
from ottla.client.sasl import Login
from ottla.console.acl_effects import Effect, World, effects, names_of, principals_of
from ottla.console.acl_rules import Acl
from ottla.console.settings import Settings
from ottla.testing import EmbeddedBroker
from ottla.testing.security import Acl as Rule
from tests.harness.console.browser import opened as open_page
from tests.harness.console.browser import served
from tests.harness.console.over_http import User, hidden_in, user

SECRET = "correct horse & battery"


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedBroker]:
    rules = [Rule("ada", "read", topic="orders"), Rule("bob", "all", topic="orders-", prefix=True)]
    with EmbeddedBroker(sasl="scram-sha-256", users={"ada": "a", "bob": "b"}, acls=rules) as broker:
        for name in ("orders", "orders-eu", "payroll"):
            broker.create_topic(name)
        yield broker


@pytest.fixture(scope="module")
def admin(secured: EmbeddedBroker) -> Iterator[User]:
    with user(secured.bootstrap_servers, login=secured._client(None).login) as found:
        yield found


def can_log_in(broker: EmbeddedBroker, name: str, password: str) -> bool:
    with Client(broker.bootstrap_servers, login=Login("SCRAM-SHA-256", name, password)) as client:
        try:
            return bool(client.metadata([]).brokers)
        except ClientError:
            return False


# ---- effects of an ACL ---------------------------------------------------------------------------------------------


def acl(principal: str, operation: str, name: str = "t", permission: str = "ALLOW", pattern: str = "LITERAL") -> Acl:
    return Acl("TOPIC", name, pattern, f"User:{principal}", "*", operation, permission)


def changed(new: Acl, before: list[Acl], existing: list[str], *, allows_all: bool = False) -> set[Effect]:
    names, principals = names_of(new, existing), principals_of(new, before, ["ada", "root"])
    return set(effects(new, before, [*before, new], World(principals, names, frozenset({"User:root"}), allows_all)))


def test_an_operation_brings_those_that_it_implies() -> None:
    assert changed(acl("ada", "READ"), [], []) == {
        Effect("User:ada", "READ", "t", False, True),
        Effect("User:ada", "DESCRIBE", "t", False, True),
    }
    assert changed(acl("ada", "DESCRIBE"), [acl("ada", "READ")], []) == set()


def test_a_rule_for_all_names_counts_existing_names_and_others() -> None:
    found = changed(acl("ada", "WRITE", "o", pattern="PREFIXED"), [], ["o-1", "p"])
    assert {each.resource for each in found} == {"o-1", "o* (every other name)"}
    everyone = changed(acl("*", "WRITE"), [acl("bob", "ALL")], [])
    assert {each.principal for each in everyone} == {"User:ada", "every other user"}


def test_a_denial_takes_what_another_rule_gives() -> None:
    found = changed(acl("*", "READ", permission="DENY"), [acl("bob", "ALL")], [])
    assert found == {Effect("User:bob", "READ", "t", True, False)}


def test_the_first_rule_of_a_resource_locks_all_others_out() -> None:
    found = changed(acl("ada", "ALL"), [], [], allows_all=True)
    assert {(each.principal, each.after) for each in found} == {("every other user", False)}
    assert len(found) == 8


# ---- ACLs ----------------------------------------------------------------------------------------------------------


def test_an_acl_is_added_and_removed(admin: User) -> None:
    form = {"principal": "User:ada", "permission": "ALLOW", "operation": "WRITE", "kind": "TOPIC", "name": "orders",
            "pattern": "PREFIXED", "host": ""}  # fmt: skip
    preview = admin.post("/security/add-acl", {"step": "preview", **form}).text
    assert "1 principal affected" in preview
    assert "ottla acls add --principal User:ada --operation write --topic orders --prefix" in preview
    assert "orders-eu" in preview
    assert "payroll" not in preview
    done = admin.change("/security/add-acl", "User:ada", form)
    assert (done.status_code, done.headers["location"]) == (303, "/security")
    question = {"principal": "User:ada", "operation": "WRITE", "kind": "TOPIC", "resource": "orders-eu"}
    assert admin.json("/security", **question)["allowed"]
    again = admin.post("/security/add-acl", {"step": "preview", **form})
    assert (again.status_code, "exists already" in again.text) == (400, True)
    wrong = admin.post("/security/add-acl", {"step": "preview", **form, "operation": "CREATE_TOKENS"})
    assert (wrong.status_code, "no operation CREATE_TOKENS on TOPIC" in wrong.text) == (400, True)
    subject = {**form, "host": "*"}
    gone = admin.change("/security/remove-acl", "User:ada", {}, **subject)
    assert gone.status_code == 303
    assert not admin.json("/security", **question)["allowed"]
    assert len(admin.json("/security/part/acls")["acls"]) == 2


# ---- users ---------------------------------------------------------------------------------------------------------


def test_a_user_is_added_changed_and_removed(
    admin: User, secured: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen: list[str] = []

    def taken(path: str, form: dict[str, str], **query: object) -> None:
        preview = admin.post(path, {"step": "preview", **form}, query)
        answer = admin.post(path, {"step": "apply", "typed": "cat", **hidden_in(preview.text)}, query)
        assert answer.status_code == 303, answer.text
        seen.extend((preview.text, answer.text, str(answer.headers), admin.get("/security")))

    taken("/security/add-user", {"name": "cat", "password": SECRET, "again": SECRET})
    assert can_log_in(secured, "cat", SECRET)
    assert any("0 ACLs name User:cat." in each for each in seen)
    taken("/security/password", {"password": f"{SECRET}2", "again": f"{SECRET}2"}, name="cat")
    assert not can_log_in(secured, "cat", SECRET)
    assert can_log_in(secured, "cat", f"{SECRET}2")
    taken("/security/remove-user", {}, name="cat")
    assert not can_log_in(secured, "cat", f"{SECRET}2")
    lines = [json.loads(each.message) for each in caplog.records if each.name == "ottla.console.audit"]
    assert [each["change"] for each in lines] == [
        f"/security/{each}" for each in ("add-user", "password", "remove-user")
    ]
    assert not [each for each in (*seen, caplog.text) if "correct horse" in each or "correct+horse" in each]


def test_a_password_is_typed_again_if_it_is_wrong_or_forgotten(admin: User) -> None:
    form = {"step": "preview", "name": "dan", "password": SECRET, "again": "other"}
    answer = admin.post("/security/add-user", form)
    assert (answer.status_code, "The two passwords differ" in answer.text) == (400, True)
    assert "correct horse" not in answer.text
    form |= {"again": SECRET}
    hidden = hidden_in(admin.post("/security/add-user", form).text)
    handles = json.loads(hidden["asked"])
    handles["password"] = handles["again"] = "guessed"
    forged = admin.post("/security/add-user", {**hidden, "step": "apply", "asked": json.dumps(handles)})
    assert (forged.status_code, "Type the password again" in forged.text) == (400, True)
    assert admin.post("/security/add-user", {"step": "apply", **hidden}).status_code == 303
    used = admin.post("/security/add-user", {"step": "apply", **hidden})
    assert used.status_code == 400
    assert admin.change("/security/remove-user", "dan", name="dan").status_code == 303


# ---- quotas --------------------------------------------------------------------------------------------------------


def test_a_quota_is_set_and_removed(admin: User) -> None:
    form = {"user": "ada", "client": "", "ip": "", "limit": "producer_byte_rate", "value": "1048576"}
    preview = admin.post("/security/quota", {"step": "preview", **form}).text
    assert "ottla quotas alter --user ada --set producer_byte_rate=1048576" in preview
    assert admin.change("/security/quota", "user ada", form).status_code == 303
    (row,) = admin.json("/security/part/quotas")["quotas"]
    assert (row["entity"], row["limit"], row["value"]) == ("user ada", "producer_byte_rate", 1048576)
    assert "user=ada" in admin.get("/security/part/quotas")
    assert admin.change("/security/quota", "user ada", {**form, "value": ""}).status_code == 303
    assert admin.json("/security/part/quotas")["quotas"] == []
    for wrong in ({"value": "0"}, {"value": "inf"}, {"user": ""}, {"limit": "x"}):
        assert admin.post("/security/quota", {"step": "preview", **form, **wrong}).status_code == 400


# ---- browser -------------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_a_user_is_added_in_a_browser(browser: Browser, secured: EmbeddedBroker) -> None:
    settings = Settings(secured.bootstrap_servers, frozenset(), login=secured._client(None).login)
    with served(settings) as address, open_page(browser, address) as found:
        found.go("/security")
        assert found.accessibility() == []
        page = found.page
        page.get_by_role("link", name="Add a user").click()
        assert found.accessibility() == []
        page.get_by_label("Name").fill("eve")
        page.get_by_label("Password", exact=True).fill(SECRET)
        page.get_by_label("The password again").fill(SECRET)
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_text("Adds the user eve")).to_be_visible()
        assert "correct horse" not in page.content()
        assert "correct" not in urlsplit(page.url).query
        page.get_by_role("button", name="Add a user").click()
        expect(page.get_by_text("Added the user eve.")).to_be_visible()
        assert not found.errors
    assert can_log_in(secured, "eve", SECRET)
