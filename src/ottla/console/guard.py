"""Checks each request before any page sees it: the Host header, the session, the origin and token of a form, its size.

It also sets the headers of every answer. Sources: Content Security Policy Level 3; Fetch (Origin); RFC 6265bis.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ottla.console.sessions import Session, Sessions
from ottla.console.settings import Settings

BODY_BYTES_MAX: Final = 2 << 20
FIELDS_MAX: Final = 500
OPEN_PATHS: Final = ("/static/", "/login", "/favicon.ico")
"""Paths that need no session."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send "Origin: null" with the console's own forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, settings: Settings, sessions: Sessions) -> None:
        self._app, self._settings, self._sessions = app, settings, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        request = Request(scope, receive)
        refused = self._refusal(request) or await self._form(request)
        if refused is not None:
            await refused(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that no page may see; None if one may. Sets `request.state.session`."""
        request.state.form = {}
        if request.headers.get("host", "").lower() not in self._settings.hosts:
            return PlainTextResponse("This console does not answer to that host name.", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Only GET and POST are served.", 405)
        given = request.query_params.get("token")
        if given is not None and request.method != "POST" and self._settings.mechanism is None:
            return self._entered(request, given)
        session = self._sessions.find(request.cookies.get(self._sessions.cookie))
        request.state.session = session
        if session is None and not request.url.path.startswith(OPEN_PATHS):
            return self._without_session(request)
        if request.method == "POST" and request.headers.get("origin") not in self._settings.origins:
            return PlainTextResponse("This form was sent by another site, so it is refused.", 403)
        return None

    def _entered(self, request: Request, given: str) -> Response:
        """Exchange the token of the printed address for a cookie."""
        if not self._sessions.is_token(given):
            return PlainTextResponse(
                "This token is not that of the console. Its address was printed at its start.", 403
            )
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        answer = RedirectResponse(request.url.path + (f"?{urlencode(rest)}" if rest else ""), 303)
        set_cookie(answer, self._sessions, self._sessions.begin())
        return answer

    def _without_session(self, request: Request) -> Response:
        if self._settings.mechanism is not None and request.method != "POST":
            where = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            if request.headers.get("hx-request") != "true":
                return RedirectResponse(f"/login?{urlencode({'next': where})}", 303)
        return PlainTextResponse(
            "There is no session. Open the address that the console printed at its start; if you came here by a link "
            "from another site and have opened it before, reload this page.",
            401,
        )

    async def _form(self, request: Request) -> Response | None:
        """Read the form of a POST to `request.state.form`, and check its token."""
        if request.method != "POST":
            return None
        kind = Headers(scope=request.scope).get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            return PlainTextResponse("Forms are sent as application/x-www-form-urlencoded.", 415)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                return PlainTextResponse(f"A form has at most {BODY_BYTES_MAX:,} bytes.", 413)
        try:
            fields = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
        except ValueError:
            return PlainTextResponse("This form cannot be read.", 400)
        form = dict(fields)
        session: Session | None = request.state.session
        if session is not None and not hmac.compare_digest(form.pop("token", "").encode(), session.token.encode()):
            return PlainTextResponse("The form's token is not that of your session. Reload the page.", 403)
        request.state.form = form
        return None


def set_cookie(answer: Response, sessions: Sessions, session: Session) -> None:
    """Give the browser its session. Browsers accept a Secure cookie from a loopback address without TLS."""
    answer.set_cookie(sessions.cookie, session.id, path="/", httponly=True, secure=True, samesite="strict")
