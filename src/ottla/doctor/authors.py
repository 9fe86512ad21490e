"""Says who set a config that a finding blames, if a node remembers it (docs/doctor.md)."""

from __future__ import annotations

from ottla.client.observations import is_remembered
from ottla.doctor.observed import ConfigChange
from ottla.doctor.snapshot import Evidence, Snapshot, Topic
from ottla.doctor.words import duration
from ottla.protocol.config_resources import QUOTA, ConfigResourceType


def set_by(evidence: Evidence, topic: Topic | None, *configs: str) -> str:
    """A sentence for each of these configs of a topic, behind a space; "" if no node remembers how it got its value."""
    if topic is None:
        return ""
    found = ((name, _author(evidence.last, topic, name)) for name in configs)
    return "".join(f" {_sentence(evidence, f'{name}={each.new}', each)}" for name, each in found if each is not None)


def _author(snapshot: Snapshot, topic: Topic, name: str) -> ConfigChange | None:
    """The change that gave the config its present value."""
    last = snapshot.last_change(ConfigResourceType.TOPIC, topic.name, name)
    if last is None or last.new is None or name not in topic.set_configs:
        return None
    return last if is_remembered(last.new, topic.configs.get(name, "")) else None


def quota_set_by(evidence: Evidence, principal: str, client_id: str) -> str:
    """A sentence about the last change of a quota that names this user or client, behind a space; "" if no node
    remembers one."""
    user = principal.removeprefix("User:")
    named = f"client-id {client_id}, user {user}", f"user {user}", f"client-id {client_id}"
    found = [
        each
        for node in evidence.last.observed
        for each in node.config_changes
        if each.kind == QUOTA and each.resource in named and each.new is not None
    ]
    last = max(found, key=lambda each: each.at_ms, default=None)
    return "" if last is None else f" {_sentence(evidence, f'{last.name}={last.new} of {last.resource}', last)}"


def _sentence(evidence: Evidence, what: str, change: ConfigChange) -> str:
    ago = duration(max(0, evidence.last.at_ms - change.at_ms) / 1000)
    where = " at ".join(filter(None, (change.client_id, change.host)))
    return f"{change.principal}{where and f' ({where})'} set {what} {ago} ago."
