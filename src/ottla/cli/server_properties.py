"""Reads the listeners and roles in Kafka's server.properties, for a node that is broker and controller in one.

It finds listeners by name, which of them are the controller's, and the advertised address of each. A file of Kafka 4
names a listener for its controller, and controller quorums. A node of Ottla has neither, so these are ignored, and a
sentence says so.

Source: Kafka's config/server.properties; KafkaConfig.validateValues (KIP-103, KIP-500).
"""

from __future__ import annotations

from ottla.broker.config.unserved import protocols_of, words

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"


class NotServedError(Exception):
    """The node does not start; the text is one sentence, and `code` is the exit code."""

    def __init__(self, sentence: str, code: int = 2) -> None:
        super().__init__(sentence)
        self.code = code


def take_listeners(settings: dict[str, str]) -> tuple[list[str], list[str]]:
    """NAME://HOST:PORT of each listener in the file, and sentences about properties that do not apply as written.

    Removes `listeners` and `controller.listener.names` from the settings, and the controller's listeners from
    `advertised.listeners`. Raises NotServedError.
    """
    require_broker(settings.get("process.roles", ""))
    controllers = {name.upper() for name in words(settings.pop("controller.listener.names", ""))}
    protocols = protocols_of(settings.get("listener.security.protocol.map", ""))
    said: list[str] = []
    listen: list[str] = []
    for text in words(settings.pop("listeners", "")):
        name, address = split(text, "listeners")
        if name in controllers:
            said.append(f"The listener {text} is ignored: a node is its own controller.")
            continue
        if address.startswith(":") and protocols.get(name, name) == "SASL_SSL":
            address = EVERYWHERE + address
        elif address.startswith(":"):
            address, sentence = anywhere(text, address, settings)
            said += sentence
        listen.append(f"{name}://{address}")
    if said and not listen:
        raise NotServedError("listeners names no listener for clients, only those of the controller.")
    advertised = words(settings.pop("advertised.listeners", ""))
    kept = [text for text in advertised if split(text, "advertised.listeners")[0] not in controllers]
    if kept:
        settings["advertised.listeners"] = ",".join(kept)
    return listen, said


def require_broker(roles: str) -> None:
    """Raise NotServedError if the file is for a controller only."""
    if roles and "broker" not in words(roles):
        raise NotServedError(f"process.roles={roles}: a node here serves clients, so one of its roles must be broker.")


def anywhere(text: str, address: str, settings: dict[str, str]) -> tuple[str, list[str]]:
    """The address for a listener without a host. Kafka's own file has such a listener, so it must not prevent a start.
    Nor may it open the node to a network that the operator has not declared trusted."""
    if settings.get("ottla.allow.public.plaintext", "").strip().lower() == "true":
        return EVERYWHERE + address, []
    return LOOPBACK + address, [
        f"The listener {text} names no host, so this node listens on {LOOPBACK} only. "
        "ottla.allow.public.plaintext=true opens it to every network of this machine."
    ]


def split(text: str, where: str) -> tuple[str, str]:
    """(name, HOST:PORT) of NAME://HOST:PORT."""
    name, separator, address = text.partition("://")
    if not separator:
        raise NotServedError(f"{text!r} in {where} is no listener: expected PLAINTEXT://HOST:PORT.")
    return name.strip().upper(), address.strip()
