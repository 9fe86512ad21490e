"""Builds the application: the routes of each page in the registry, the login, and the files that browsers load."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ottla.client.errors import BrokerError, ClientError, TimedOutError
from ottla.client.sasl import Login
from ottla.console import changes
from ottla.console.access import Lease, ReadOnlyError
from ottla.console.guard import Guard, set_cookie
from ottla.console.page import Change, Context, Done, Download, InputError, MissingError, Page, Part, View
from ottla.console.registry import PAGES
from ottla.console.rendering import HERE, html, json_bytes
from ottla.console.sessions import Session, Sessions
from ottla.console.settings import Settings
from ottla.console.workers import BusyError, Workers
from ottla.escaping import visible
from ottla.protocol.errors import ErrorCode
from ottla.schemas.decoder import Decoder

LOG: Final = logging.getLogger("ottla.console")
Endpoint: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]
KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
EXPECTED: Final = (ClientError, MissingError, InputError, BusyError)
MISSING: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
}
FAILED_LOGINS_MAX: Final = 20
"""Failed logins in a minute, of all browsers together, before further ones are refused."""
TIDY_S: Final = 20.0
REFRESH: Final = "ottla-refresh"
"""The header of a request by which an open page refreshes itself."""


def status_of(failure: Exception) -> int:
    """The HTTP status of a failure that pages expect."""
    if isinstance(failure, BrokerError):
        if failure.name.endswith("_AUTHORIZATION_FAILED"):
            return 403
        return 404 if failure.code in MISSING else 502
    kinds = {MissingError: 404, InputError: 400, BusyError: 503, ReadOnlyError: 403, TimedOutError: 504}
    return next((status for kind, status in kinds.items() if isinstance(failure, kind)), 502)


@dataclass(slots=True)
class Console:
    """The state of a running console."""

    settings: Settings
    pages: Sequence[Page]
    sessions: Sessions
    workers: Workers
    decoder: Decoder | None = None
    failed_logins: list[float] = field(default_factory=list[float])

    # ---- work on threads -------------------------------------------------------------------------------------------

    async def run(self, request: Request, work: Callable[[Context], Response], *, may_change: bool = False) -> Response:
        """The answer that a function of a page makes, on a thread and with a client."""
        session: Session = request.state.session
        use = session.clients.change if may_change else session.clients.read

        def on_thread(lease: Lease) -> Response:
            query = dict(request.query_params)
            try:
                return work(Context(self.settings, session, lease, query, request.state.form, self.decoder))
            finally:
                if may_change:
                    session.shared.forget()

        return await self.workers.run(lambda: use(on_thread))

    def view(self, request: Request, load: Callable[[Context], View], refresh_s: float) -> View:
        """Make the view of a page, on a thread. Pages that are loaded read the cluster. Those that refresh themselves
        show what another session of the same login has read in the last half of their interval."""
        session: Session = request.state.session
        query = dict(request.query_params)

        def read() -> View:
            def on_thread(lease: Lease) -> View:
                return load(Context(self.settings, session, lease, query, request.state.form, self.decoder))

            return session.clients.read(on_thread)

        if not refresh_s or request.headers.get(REFRESH) != "true":
            return read()
        kept = session.shared.views.at((request.url.path, *sorted(query.items())))
        return kept.get(refresh_s / 2, read, self.settings.deadline_s)

    def page(self, request: Request, template: str, status: int = 200, **given: Any) -> Response:
        """A page as HTML; only its inner part for a request of htmx."""
        session: Session | None = request.state.session
        is_fragment = request.headers.get("hx-request") == "true"
        text = html(
            template,
            layout="fragment.html" if is_fragment else "base.html",
            navigation=[each for each in self.pages if each.label],
            settings=self.settings,
            session=session,
            said=[] if session is None or is_fragment else session.taken_messages(),
            here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            query=request.query_params,
            **{"page": None, "part": None, "view": None, "changing": False, **given},
        )
        return Response(text.encode("utf-8", "replace"), status, media_type="text/html; charset=utf-8")

    def failure(self, request: Request, failure: Exception, page: Page | None = None, *, as_json: bool) -> Response:
        """A failure in the place where the result would be."""
        status = status_of(failure)
        if as_json:
            content = json_bytes({"error": str(failure)})
            return Response(content, status, media_type="application/json")
        return self.page(request, "error.html", status, sentence=str(failure), page=page)

    # ---- endpoints -------------------------------------------------------------------------------------------------

    def shows(
        self, page: Page, load: Callable[[Context], View], template: str, part: Part | None, *, as_json: bool
    ) -> Endpoint:
        async def show(request: Request) -> Response:
            def work() -> Response:
                view = self.view(request, load, (part or page).refresh_s)
                if as_json:
                    return Response(json_bytes(view), media_type="application/json")
                return self.page(request, template, page=page, part=part, view=view)

            try:
                return await self.workers.run(work)
            except EXPECTED as failure:
                return self.failure(request, failure, page, as_json=as_json)

        return show

    def downloads(self, page: Page, download: Download) -> Endpoint:
        async def send(request: Request) -> Response:
            def work(context: Context) -> Response:
                name, content = download.load(context)
                disposition = f"attachment; filename*=UTF-8''{quote(visible(name).replace('/', '_'), safe='')}"
                return Response(
                    content, media_type="application/octet-stream", headers={"content-disposition": disposition}
                )

            try:
                return await self.run(request, work)
            except EXPECTED as failure:
                return self.failure(request, failure, page, as_json=False)

        return send

    def change_form(self, page: Page, change: Change) -> Endpoint:
        async def show(request: Request) -> Response:
            try:
                return await self.run(request, lambda context: self.step(request, page, changes.shown(change, context)))
            except EXPECTED as failure:
                return self.failure(request, failure, page, as_json=False)

        return show

    def change_steps(self, page: Page, change: Change) -> Endpoint:
        async def take(request: Request) -> Response:
            is_last = request.state.form.get("step") == "apply"
            refused: list[Response] = []

            def check(context: Context) -> Response:
                view = changes.refusal(change, context) if is_last else changes.previewed(change, context)
                if view is not None:
                    refused.append(self.step(request, page, view))
                return Response()

            try:
                await self.run(request, check)
            except EXPECTED as failure:
                return self.failure(request, failure, page, as_json=False)
            return refused[0] if refused else await self.apply(request, page, change)

        return take

    async def apply(self, request: Request, page: Page, change: Change) -> Response:
        """The last step. A failure is shown beside the button, with the form as it was."""
        session: Session = request.state.session
        name, query = f"{page.path}/{change.name}", dict(request.query_params)
        done: list[Done] = []

        def work(context: Context) -> Response:
            done.append(changes.applied(change, context))
            return Response()

        try:
            await self.run(request, work, may_change=True)
        except EXPECTED as failure:
            changes.audit(session, name, query, f"failed: {failure}")
            sentence, status = changes.sentence_of(failure), status_of(failure)
        except Exception as fault:
            changes.audit(session, name, query, f"failed: {fault!r}")
            raise
        else:
            changes.audit(session, name, query, "done", done[0].details)
            session.say(done[0].sentence)
            return RedirectResponse(done[0].next, 303)
        with suppress(*EXPECTED):
            return await self.run(
                request,
                lambda context: self.step(request, page, changes.previewed(change, context, sentence), status),
            )
        return self.page(request, "error.html", status, sentence=sentence, page=page)

    def step(self, request: Request, page: Page, view: changes.ChangeView, status: int = 200) -> Response:
        return self.page(
            request, "change.html", 400 if view.error and status == 200 else status, page=page, view=view, changing=True
        )

    # ---- login -----------------------------------------------------------------------------------------------------

    async def login_page(self, request: Request) -> Response:
        return self.page(request, "login.html", error="", next=local(request.query_params.get("next")))

    async def login(self, request: Request) -> Response:
        """Log in with a login of the cluster: the broker decides."""
        form, mechanism = request.state.form, self.settings.mechanism
        target = local(form.get("next"))
        if mechanism is None:
            return RedirectResponse("/", 303)
        now = time.monotonic()
        self.failed_logins = [at for at in self.failed_logins if now - at < 60]
        if len(self.failed_logins) >= FAILED_LOGINS_MAX:
            return self.page(request, "login.html", 429, error="Too many logins failed. Wait a minute.", next=target)
        user = form.get("user", "")
        session = self.sessions.begin(user, Login(mechanism, user, form.get("password", "")))
        try:
            await self.workers.run(lambda: session.clients.read(lambda lease: lease.client.metadata([])))
        except (ClientError, BusyError, ValueError) as failure:
            self.sessions.end(session)
            self.failed_logins.append(now)
            changes.audit(session, "login", {}, f"failed: {failure}")
            return self.page(request, "login.html", 403, error=str(failure), next=target)
        answer = RedirectResponse(target, 303)
        set_cookie(answer, self.sessions, session)
        return answer

    async def logout(self, request: Request) -> Response:
        self.sessions.end(request.state.session)
        answer = RedirectResponse("/login" if self.settings.mechanism else "/", 303)
        answer.delete_cookie(self.sessions.cookie, path="/", secure=True, httponly=True, samesite="strict")
        return answer


def local(target: str | None) -> str:
    """An address within the console, whatever a form says."""
    if target is None or not target.startswith("/") or target.startswith("//") or "\\" in target:
        return "/"
    return target


def routes(console: Console) -> list[Route]:
    found = [Route("/", redirect_to_first(console.pages)), *static_routes()]
    if console.settings.mechanism is not None:
        found += [Route("/login", console.login_page), Route("/login", console.login, methods=["POST"])]
    found.append(Route("/logout", console.logout, methods=["POST"]))
    for page in console.pages:
        places = [(page.path, page.load, f"{page.name}.html", None)]
        places += [
            (f"{page.path}/part/{each.name}", each.load, f"{page.name}_{each.name}.html", each) for each in page.parts
        ]
        for path, load, template, part in places:
            for as_json in (False, True):
                endpoint = console.shows(page, load, template, part, as_json=as_json)
                found.append(Route(path + (".json" if as_json else ""), endpoint))
        for download in page.downloads:
            found.append(Route(f"{page.path}/download/{download.name}", console.downloads(page, download)))
        for change in () if console.settings.read_only else page.changes:
            path = f"{page.path}/{change.name}"
            found.append(Route(path, console.change_form(page, change)))
            found.append(Route(path, console.change_steps(page, change), methods=["POST"]))
    return found


def redirect_to_first(pages: Sequence[Page]) -> Endpoint:
    async def redirect(_: Request) -> Response:
        return RedirectResponse(pages[0].path, 303)

    return redirect


def static_routes() -> list[Route]:
    """The files of the package, read once: no path of a browser reaches the disk."""

    def serves(content: bytes, kind: str) -> Endpoint:
        async def serve(_: Request) -> Response:
            return Response(content, media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})

        return serve

    found: list[Route] = []
    for path in sorted((HERE / "static").iterdir()):
        if (kind := KINDS.get(path.suffix[1:])) is not None:
            endpoint = serves(path.read_bytes(), kind)
            found.append(Route(f"/static/{path.name}", endpoint))
            if path.name == "favicon.svg":
                found.append(Route("/favicon.ico", endpoint))
    return found


def create_app(settings: Settings, pages: Sequence[Page] = PAGES) -> ASGIApp:
    """The application, ready for any ASGI server."""
    sessions = Sessions(settings)
    registry = None if settings.no_records else settings.registry
    decoder = None if registry is None else Decoder(registry)
    console = Console(settings, pages, sessions, Workers(), decoder)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        tidying = asyncio.create_task(tidy(sessions))
        try:
            yield
        finally:
            tidying.cancel()
            sessions.close()
            console.workers.close()
            if decoder is not None:
                decoder.close()

    async def missing(request: Request, _: Exception) -> Response:
        return console.page(request, "error.html", 404, sentence="There is no such page.")

    async def fault(request: Request, error: Exception) -> Response:
        LOG.error("A fault of the console's own, at %s", visible(request.url.path), exc_info=error)
        return console.page(
            request, "error.html", 500, sentence="This is a fault of the console's own; its log has more."
        )

    handlers: Any = {404: missing, Exception: fault}
    app = Starlette(routes=routes(console), exception_handlers=handlers, lifespan=lifespan)
    return Guard(app, settings, sessions)


async def tidy(sessions: Sessions) -> None:
    """Close what no browser uses any more, until cancelled."""
    while True:
        await asyncio.sleep(TIDY_S)
        sessions.close_idle()
