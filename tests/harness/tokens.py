"""An authorization server for tests: keys, signed tokens, and an HTTP endpoint on loopback that gives both."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER, AUDIENCE = "https://issuer.example", "ottla"
SECRET = "client-secret"


def base64url(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


class Issuer:
    """Signs tokens with an elliptic-curve key."""

    def __init__(self, kid: str = "first") -> None:
        self.kid = kid
        self.key = ec.generate_private_key(ec.SECP256R1())

    @property
    def jwk(self) -> dict[str, Any]:
        return {**public_jwk(self.key), "kid": self.kid, "use": "sig"}

    @property
    def key_set(self) -> bytes:
        return json.dumps({"keys": [self.jwk]}).encode()

    def token(self, now_s: float | None = None, *, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token that is accepted, unless claims or headers say otherwise; None leaves a claim out."""
        now = int(time.time() if now_s is None else now_s)
        given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 300, **claims}
        body = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(body, self.key, "ES256", {"kid": self.kid, **(header or {})})


def public_jwk(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> dict[str, Any]:
    algorithm: Any = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    return json.loads(algorithm.to_jwk(key.public_key()))


class Endpoints:
    """`/keys` and `/token` over HTTP. `status`: of every answer; `asked`: the paths, in order."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.status = 200
        self.location: str | None = None
        self.body: bytes | None = None
        self.lifetime_s = 300
        self.asked: list[str] = []
        endpoints = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(endpoints.issuer.key_set)

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                basic = self.headers.get("Authorization", "").removeprefix("Basic ")
                if form.get("grant_type") != ["client_credentials"] or not base64.b64decode(basic).endswith(
                    f":{SECRET}".encode()
                ):
                    self.send_error(401)
                    return
                now = int(time.time())
                token = endpoints.issuer.token(exp=now + endpoints.lifetime_s, scope=" ".join(form.get("scope", [])))
                answer = {"access_token": token, "token_type": "Bearer", "expires_in": endpoints.lifetime_s}
                self.answer(json.dumps(answer).encode())

            def answer(self, body: bytes) -> None:
                endpoints.asked.append(self.path)
                self.send_response(endpoints.status)
                if endpoints.location is not None:
                    self.send_header("Location", endpoints.location)
                content = body if endpoints.body is None else endpoints.body
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def serving(issuer: Issuer) -> Iterator[Endpoints]:
    endpoints = Endpoints(issuer)
    thread = threading.Thread(target=endpoints.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield endpoints
    finally:
        endpoints.server.shutdown()
        endpoints.server.server_close()
        thread.join()
