"""Formats and parses the 16-byte ids of the protocol: of topics, directories, members.

Source: Kafka's Uuid.java: base64 for URLs (RFC 4648, section 5), without padding.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode

UUID_BYTES = 16


def uuid_text(raw: bytes) -> str:
    """The text of an id, as Kafka writes it."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """The id of a text. Raises ValueError unless it encodes 16 bytes."""
    raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != UUID_BYTES:
        raise ValueError(f"an id has {UUID_BYTES} bytes, {text!r} has {len(raw)}")
    return raw
