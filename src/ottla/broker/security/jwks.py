"""Reads the public keys that sign tokens: a JSON Web Key Set (JWKS).

Keys are found by id and algorithm. A key serves only the algorithms of its own type, so a token can't choose how it is
checked: no `none`, and no HMAC with a public key as its secret. Keys that can't be used are skipped: symmetric ones,
ones for encryption, short RSA keys, unknown curves. A set without a usable key is refused.

Sources: RFC 7517, RFC 7518, RFC 8037, RFC 8725.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

KEY_SET_BYTES_MAX: Final = 1 << 18
KEYS_MAX: Final = 100
RSA_BITS_MIN: Final = 2048
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}

KeySet: TypeAlias = Mapping[tuple[str, str], Any]
"""The public keys, by key id and algorithm."""
NO_KEYS: Final[KeySet] = {}


class KeysRefusedError(Exception):
    """The text is no key set that can be used; the message says why."""


def key_set_of(text: bytes) -> KeySet:
    """The keys of a JWKS. Raises KeysRefusedError."""
    if len(text) > KEY_SET_BYTES_MAX:
        raise KeysRefusedError(f"it has more than {KEY_SET_BYTES_MAX} bytes")
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        raise KeysRefusedError("it is not JSON") from None
    listed = cast("dict[str, Any]", read).get("keys") if isinstance(read, dict) else None
    if not isinstance(listed, list):
        raise KeysRefusedError("it has no list of keys")
    keys = cast("list[Any]", listed)
    if len(keys) > KEYS_MAX:
        raise KeysRefusedError(f"it has more than {KEYS_MAX} keys")
    found: dict[tuple[str, str], Any] = {}
    for each in keys:
        if isinstance(each, dict):
            found |= _usable(cast("dict[str, Any]", each), found)
    if not found:
        raise KeysRefusedError("it has no key that can check a signature, with a key id")
    return found


def _usable(jwk: dict[str, Any], before: KeySet) -> dict[tuple[str, str], Any]:
    """The key by id and each of its algorithms; empty if it can't be used. Of two keys with one id, neither the second
    nor its algorithms replace the first."""
    kid, kty, named = jwk.get("kid"), jwk.get("kty"), jwk.get("alg")
    if not isinstance(kid, str) or not kid or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return {}
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return {}
    if kty == "RSA":
        algorithms: tuple[str, ...] = _RSA
    elif kty in ("EC", "OKP"):
        algorithms = tuple(filter(None, (_CURVES.get(str(jwk.get("crv"))),)))
    else:
        return {}
    if named is not None:
        algorithms = tuple(each for each in algorithms if each == named)
    key = _public_key(jwk) if algorithms else None
    return {} if key is None else {(kid, each): key for each in algorithms if (kid, each) not in before}


def _public_key(jwk: dict[str, Any]) -> Any:
    import jwt

    try:
        key = jwt.PyJWK(jwk).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    return None if jwk["kty"] == "RSA" and key.key_size < RSA_BITS_MIN else key
