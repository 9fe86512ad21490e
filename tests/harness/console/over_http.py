"""Asks the console's application without a browser, as a user who has opened the printed address."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from starlette.testclient import TestClient

from ottla.console.app import create_app
from ottla.console.settings import Settings

HOST = "127.0.0.1:9080"
ORIGIN = f"https://{HOST}"
TOKEN = "token-of-the-printed-address"


def settings(bootstrap: str, **given: Any) -> Settings:
    """The settings of a console over this cluster; https, so that the test's client sends the cookie."""
    return Settings(bootstrap, frozenset({HOST}), is_https=True, **{"token": TOKEN, **given})


@contextmanager
def anonymous(used: Settings) -> Iterator[TestClient]:
    """A browser without a session."""
    app = create_app(used)
    with TestClient(app, base_url=ORIGIN, follow_redirects=False) as client:
        yield client


class User:
    """A browser with a session. `get` returns the page's text, `json` the view, `post` sends a form as a page would."""

    def __init__(self, client: TestClient, login: tuple[str, str] | None = None) -> None:
        self.client = client
        if login is None:
            entered = client.get("/", params={"token": TOKEN})
        else:
            form = {"user": login[0], "password": login[1]}
            entered = client.post("/login", data=form, headers={"origin": ORIGIN})
        assert entered.status_code == 303, entered.text

    def get(self, path: str, status: int = 200, /, **query: object) -> str:
        answer = self.client.get(address(path, query))
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        return answer.text

    def json(self, path: str, status: int = 200, /, **query: object) -> Any:
        answer = self.client.get(address(f"{path}.json", query))
        assert answer.status_code == status, (path, answer.status_code, answer.text[-2000:])
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    @cached_property
    def token(self) -> str:
        """The token in the forms of this session."""
        found = re.search(r'name="token" value="([^"]+)"', self.get("/topics"))
        assert found is not None
        return found[1]

    def post(self, path: str, form: Mapping[str, str], query: Mapping[str, object] = {}) -> Any:
        fields = {"token": self.token, **form}
        return self.client.post(address(path, query), data=fields, headers={"origin": ORIGIN})

    def change(self, path: str, typed: str | None = None, form: Mapping[str, str] = {}, **query: object) -> Any:
        """Take a change through its preview to its end; returns the last answer."""
        shown = self.post(path, {"step": "preview", **form}, query)
        assert shown.status_code == 200, shown.text[-2000:]
        return self.post(path, {"step": "apply", "typed": typed or "", **hidden_in(shown.text)}, query)


def hidden_in(text: str) -> dict[str, str]:
    """The fields by which a preview confirms itself."""
    found = re.findall(r'<input type="hidden" name="(asked|digest)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in found}


def address(path: str, query: Mapping[str, object]) -> str:
    return f"{path}?{urlencode({name: str(value) for name, value in query.items()})}" if query else path


@contextmanager
def user(bootstrap: str, **given: Any) -> Iterator[User]:
    """A user of a console over this cluster."""
    with anonymous(settings(bootstrap, **given)) as client:
        yield User(client)
