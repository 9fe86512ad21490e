"""Finds the principal of a client that has presented a certificate.

The subject of the certificate is written as RFC 2253 has it (`CN=ada,OU=Sales,O=Example`), and the first rule of
`ssl.principal.mapping.rules` that matches the whole of it makes the name:

    RULE:^CN=([a-zA-Z0-9.]*).*$/$1/L    the common name in lower case
    DEFAULT                             the whole subject

Sources: Kafka's SslPrincipalMapper.java, DefaultKafkaPrincipalBuilder.java; KIP-371.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_SEPARATOR: Final = re.compile(r",\s*(?=RULE:|DEFAULT)")
_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_GROUP: Final = re.compile(r"\$(\d)")


class Rule(NamedTuple):
    """`pattern`: what the whole subject has to match. `case`: L for lower case, U for upper case, or empty."""

    pattern: re.Pattern[str]
    replacement: str
    case: str


DEFAULT: Final = Rule(re.compile("(.*)", re.DOTALL), r"\1", "")


def rules_of(text: str) -> list[Rule]:
    """The rules in ssl.principal.mapping.rules. Raises ValueError with a sentence."""
    return [_rule(each.strip()) for each in _SEPARATOR.split(text.strip()) if each.strip()] or [DEFAULT]


def _rule(text: str) -> Rule:
    if text == "DEFAULT":
        return DEFAULT
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text} in ssl.principal.mapping.rules is neither DEFAULT nor RULE:pattern/replacement/[LU]")
    pattern, replacement, case = found.groups()
    try:
        compiled = re.compile(pattern)
        made = Rule(compiled, _GROUP.sub(r"\\g<\1>", replacement.replace("\\", "\\\\")), case)
        if any(int(group) > compiled.groups for group in _GROUP.findall(replacement)):
            raise ValueError(f"{text} in ssl.principal.mapping.rules names a group that its pattern does not have")
    except re.error as error:
        raise ValueError(f"the pattern of {text} in ssl.principal.mapping.rules is invalid: {error}") from None
    return made


def name_of(subject: str, rules: list[Rule]) -> str | None:
    """The name that the rules make of a subject, None if no rule matches."""
    for rule in rules:
        if rule.pattern.fullmatch(subject):
            name = rule.pattern.sub(rule.replacement, subject, count=1)
            return name.lower() if rule.case == "L" else name.upper() if rule.case == "U" else name
    return None


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER."""
    from cryptography import x509

    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
