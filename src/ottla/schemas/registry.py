"""Asks a schema registry for schemas, and keeps them: a schema with an id never changes.

It speaks the HTTP interface of Confluent's registry, which Karapace, Redpanda and Apicurio (`/apis/ccompat/v7`) also
serve. The registry is not trusted: answers, references and the time for all of it are bounded, and redirects are not
followed. A registry that fails is left alone for some seconds.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

from ottla.client.https import FetchFailedError, UrlRefusedError, context_of, fetch, is_local, place_of
from ottla.escaping import visible

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
KINDS: Final = {AVRO: "Avro", PROTOBUF: "Protobuf", JSON: "JSON Schema"}
ANSWER_BYTES_MAX: Final = 1 << 20
REFERENCES_MAX: Final = 40
SCHEMAS_MAX: Final = 200
SCHEMA_BYTES_MAX: Final = 4 << 20
KEPT_BYTES_MAX: Final = 32 << 20
ASKS_MAX: Final = 60
SECONDS_MAX: Final = 4.0
ANSWER_S: Final = 2.0
SERIALIZED: Final = "?format=serialized"
"""Asks for a FileDescriptorProto in place of the source text. Old registries ignore it, and some fail on it."""
AWAY_S: Final = 10.0
"""Seconds for which a registry that failed is not asked."""
AWAY_STATUSES: Final = (None, 401, 403, 429, 502, 503, 504)
"""Statuses after which every other request would fail too; None: no answer."""
REFUSED_S: Final = 30.0
"""Seconds for which it is not asked again about a schema that it does not have."""
REFUSED_MAX: Final = 1_000


class WrongRegistryError(ValueError):
    """The registry's address or login cannot be used; the text is one sentence."""


class SchemaUnavailableError(Exception):
    """There is no usable schema; the text is one sentence."""


class _NotDescribedError(Exception):
    """The registry does not give a schema of Protobuf as a descriptor."""


class OutOfBoundsError(SchemaUnavailableError):
    """A request of the user may not ask the registry, or decode, any more."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """A registry and how to log in to it: `login` is a user and a password, or else there may be a `token`."""

    url: str
    login: tuple[str, str] | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    def require_usable(self) -> None:
        """Raise WrongRegistryError unless the address, the login and the file of authorities can be used."""
        try:
            place = place_of(self.url, any_http=True)
        except UrlRefusedError as refused:
            raise WrongRegistryError(f"{visible(self.url)} cannot be the address of a registry. {refused}") from None
        if urlsplit(self.url).query:
            raise WrongRegistryError(f"{visible(self.url)} cannot be the address of a registry. It may have no query.")
        if (self.login or self.token) and not place.is_secure and not is_local(place.host):
            raise WrongRegistryError("A login to the registry needs https://: over http://, everyone could read it.")
        token = self.token or ""
        if not (token.isascii() and "".join((token, *(self.login or ()))).isprintable()):
            raise WrongRegistryError(
                "The login to the registry has characters that cannot be sent, such as a line end."
            )
        if place.is_secure:
            try:
                context_of(self.ca_file)
            except FetchFailedError as failure:
                raise WrongRegistryError(f"The authorities of the registry are unknown: {failure}.") from None

    def headers(self) -> dict[str, str]:
        if self.login is not None:
            pair = base64.b64encode(":".join(self.login).encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass(slots=True)
class Bounds:
    """The requests and the time that one request of a user may cost. `broken` are schemas that broke the decoder."""

    asks_left: int = ASKS_MAX
    seconds_left: float = SECONDS_MAX
    broken: dict[int | str, str] = field(default_factory=dict[int | str, str])

    def require_time(self) -> None:
        """Raise OutOfBoundsError if no time is left."""
        if self.seconds_left <= 0:
            raise OutOfBoundsError("There was no time left to decode it.")


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema with those that it refers to, in the order in which they can be read: (name, text). Texts of Protobuf
    are FileDescriptorProtos in base64 or sources."""

    id: int | str
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        return len(self.text) + sum(len(text) for _, text in self.references)

    @property
    def label(self) -> str:
        return f"{KINDS[self.kind]}, schema {self.id}"


class Version(NamedTuple):
    """A version of a subject, and the number of its schema."""

    subject: str
    version: int
    schema: int


class Registry:
    """The schemas of a registry, for any thread."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._kept: OrderedDict[int | str, Schema] = OrderedDict()
        self._kept_bytes = 0
        self._refused: OrderedDict[int | str, tuple[float, str]] = OrderedDict()
        self._away: tuple[float, str] = (0.0, "")

    def schema(self, id: int | str, bounds: Bounds) -> Schema:
        """The schema with this number or GUID. Raises SchemaUnavailableError."""
        with self._lock:
            if id in self._kept:
                self._kept.move_to_end(id)
                return self._kept[id]
            until, why = self._refused.get(id, (0.0, ""))
        if until > time.monotonic():
            raise SchemaUnavailableError(why)
        try:
            found = self._assembled(id, bounds)
        except OutOfBoundsError:
            raise
        except SchemaUnavailableError as failure:
            self._refuse(id, str(failure))
            raise
        self._keep(found)
        return found

    def version(self, subject: str, version: int | None, bounds: Bounds) -> Version:
        """A version of a subject, None for its newest. It is asked for each time, because subjects change. Raises
        SchemaUnavailableError."""
        which = "" if version is None else f", version {version}"
        missing = f"The registry has no subject {visible(subject)}{which}."
        path = f"/subjects/{quote(subject, safe='', errors='replace')}/versions/{version or 'latest'}"
        answer = self._answer(path, missing, bounds)
        found, number = answer.get("version"), answer.get("id")
        if not isinstance(found, int) or not isinstance(number, int) or not 0 < number < 1 << 31:
            raise SchemaUnavailableError("The schema registry's answer names no version and no schema.")
        return Version(subject, found, number)

    def _keep(self, schema: Schema) -> None:
        with self._lock:
            if schema.id not in self._kept:
                self._kept[schema.id] = schema
                self._kept_bytes += schema.size
            while len(self._kept) > SCHEMAS_MAX or self._kept_bytes > KEPT_BYTES_MAX:
                self._kept_bytes -= self._kept.popitem(last=False)[1].size

    def _refuse(self, id: int | str, why: str) -> None:
        with self._lock:
            self._refused[id] = time.monotonic() + REFUSED_S, why
            self._refused.move_to_end(id)
            while len(self._refused) > REFUSED_MAX:
                self._refused.popitem(last=False)

    def _assembled(self, id: int | str, bounds: Bounds) -> Schema:
        """The schema from its answers. Raises SchemaUnavailableError."""
        path = f"/schemas/{'ids' if isinstance(id, int) else 'guids'}/{id}"
        missing = f"The registry has no schema {id}."
        answer = self._answer(path, missing, bounds)
        text = _text_of(answer)
        kind = str(answer.get("schemaType") or (AVRO if text.lstrip()[:1] in ("{", "[", '"') else PROTOBUF))
        if kind not in KINDS:
            raise SchemaUnavailableError(f"Schema {id} is of a kind that Ottla does not know: {visible(kind[:40])}.")
        if kind == JSON:
            return self._with_references(id, kind, {"schema": text}, "", bounds)
        if kind == PROTOBUF:
            with suppress(_NotDescribedError):
                serialized = self._answer(path + SERIALIZED, missing, bounds, is_descriptor=True)
                return self._with_references(id, kind, serialized, SERIALIZED, bounds)
        return self._with_references(id, kind, answer, "", bounds)

    def _with_references(
        self, id: int | str, kind: str, answer: Mapping[str, Any], more: str, bounds: Bounds
    ) -> Schema:
        """The schema of an answer with what it refers to, deepest first; a name is added once. Raises
        SchemaUnavailableError."""
        found: dict[str, str] = {}
        begun: set[str] = set()

        def add(answer: Mapping[str, Any]) -> None:
            for name, subject, version in _references_of(answer):
                if name in begun:
                    continue
                if len(begun) >= REFERENCES_MAX:
                    raise SchemaUnavailableError(f"The schema has more than {REFERENCES_MAX} references.")
                begun.add(name)
                missing = f"The registry lacks {visible(subject)} version {version}, to which the schema refers."
                path = f"/subjects/{quote(subject, safe='', errors='replace')}/versions/{version}{more}"
                referred = self._answer(path, missing, bounds, is_descriptor=bool(more))
                add(referred)
                found[name] = _text_of(referred)

        add(answer)
        schema = Schema(id, kind, _text_of(answer), tuple(found.items()))
        if schema.size > SCHEMA_BYTES_MAX:
            raise SchemaUnavailableError(f"Schema {id} is larger than {SCHEMA_BYTES_MAX >> 20} MB with its references.")
        return schema

    def _answer(self, path: str, missing: str, bounds: Bounds, *, is_descriptor: bool = False) -> dict[str, Any]:
        """The answer to a GET. Raises SchemaUnavailableError, with `missing` if the registry does not have it, and
        _NotDescribedError if a descriptor was wanted and the registry gives none."""
        try:
            answer = self._asked(path, missing, bounds)
        except OutOfBoundsError:
            raise
        except SchemaUnavailableError:
            if is_descriptor:
                raise _NotDescribedError from None
            raise
        if is_descriptor and not _is_base64(_text_of(answer)):
            raise _NotDescribedError
        return answer

    def _asked(self, path: str, missing: str, bounds: Bounds) -> dict[str, Any]:
        """The answer to a GET. Raises SchemaUnavailableError."""
        bounds.require_time()
        if bounds.asks_left <= 0:
            raise OutOfBoundsError(f"The registry was asked {ASKS_MAX} times already.")
        until, why = self._away
        began = time.monotonic()
        if until > began:
            raise OutOfBoundsError(why)
        bounds.asks_left -= 1
        settings = self._settings
        headers = {**settings.headers(), "Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        try:
            content = fetch(
                settings.url.rstrip("/") + path,
                bytes_max=ANSWER_BYTES_MAX,
                ca_file=settings.ca_file,
                headers=headers,
                timeout_s=max(0.1, min(ANSWER_S, bounds.seconds_left)),
                any_http=True,
            )
            answer = json.loads(content)
        except FetchFailedError as failure:
            if failure.status == 404:
                raise SchemaUnavailableError(missing) from None
            why = f"The schema registry gives no answer. {visible(str(failure))}."
            if failure.status in AWAY_STATUSES:
                self._away = time.monotonic() + AWAY_S, why
                raise OutOfBoundsError(why) from None
            raise SchemaUnavailableError(why) from None
        except (ValueError, RecursionError):
            raise SchemaUnavailableError("The schema registry's answer is not JSON.") from None
        finally:
            bounds.seconds_left -= time.monotonic() - began
        if not isinstance(answer, dict):
            raise SchemaUnavailableError("The schema registry's answer is not a JSON object.")
        return answer


def _text_of(answer: Mapping[str, Any]) -> str:
    """The schema in an answer. Raises SchemaUnavailableError."""
    text = answer.get("schema")
    if not isinstance(text, str):
        raise SchemaUnavailableError("The schema registry's answer has no schema.")
    return text


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except ValueError:
        return False


def _references_of(answer: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Name, subject and version of each reference of an answer. Raises SchemaUnavailableError."""
    references = answer.get("references") or []
    try:
        return [(str(each["name"]), str(each["subject"]), int(each["version"])) for each in references]
    except (TypeError, KeyError, ValueError, OverflowError):
        raise SchemaUnavailableError("The references of the schema cannot be read.") from None
