"""Adds the first user of a node, and turns ACLs on for a node that has users.

ACLs are on as soon as a node with a SASL listener has a user, unless `authorizer.class.name` is set: an empty value
leaves them off. The node decides when it starts, so a user that is added meanwhile takes no rights from others.

A node that knows its clients only by certificates or tokens does not start until `authorizer.class.name` is set: an
authority or an issuer often vouches for more clients than the operator has in mind.

Source: Kafka's kafka-storage --add-scram (KIP-900).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.broker.config.values import BrokerSettings
from ottla.metadata.credentials import PREFIX, credential_of, key_of
from ottla.metadata.store import ABSENT, ConflictError, MetadataStore, Put
from ottla.server.listeners import Listener
from ottla.server.refusals import SettingsRefusedError

log = logging.getLogger("ottla.server")

OAUTHBEARER: Final = "OAUTHBEARER"
CLIENT_AUTH: Final = "ssl.client.auth"


def add_first_user(store: MetadataStore, name: str, password: Callable[[], str]) -> None:
    """Add a user with each mechanism, if the store has no users. `password` is called only then."""
    from ottla.protocol.scram import DIGESTS  # a node without users starts without it

    if any(store.get(key_of(name, each)) is not None for each in DIGESTS):
        return
    if store.list(PREFIX):
        log.warning("The user %s was not added: there are users already. `ottla users add` adds more.", name)
        return
    secret = password()
    rows = [Put(key_of(name, each), credential_of(each, secret).encode(), ABSENT) for each in DIGESTS]
    try:
        store.commit(rows)
    except ConflictError:  # another node of the cluster has added it
        return
    log.info("Added the user %s.", name)


def with_acls(
    settings: BrokerSettings,
    given: Mapping[str, str],
    listeners: Sequence[Listener],
    store: MetadataStore,
    between_nodes: Listener | None,
) -> BrokerSettings:
    """The settings with ACLs turned on if the node has users and the operator has not decided. Raises
    SettingsRefusedError if the operator has to decide.

    - `given`: what the operator has set.
    - `between_nodes`: the listener of the cluster's nodes; None without a cluster.
    """
    if AUTHORIZER in given:
        return settings
    if not (any(each.sasl for each in listeners) and store.list(PREFIX)):
        _refuse_strangers(settings, [each for each in listeners if len(listeners) == 1 or each is not between_nodes])
        return settings
    log.warning(
        "ACLs are on, because there are users and %s is not set: only what ACLs allow is allowed. To choose "
        "who may do everything, set %s=%s and super.users=User:NAME; an empty %s turns ACLs off.",
        AUTHORIZER,
        AUTHORIZER,
        AUTHORIZERS[0],
        AUTHORIZER,
    )
    return BrokerSettings.load({**given, AUTHORIZER: AUTHORIZERS[0]})


def _refuse_strangers(settings: BrokerSettings, listeners: Sequence[Listener]) -> None:
    """Raise SettingsRefusedError if clients log in by certificates or tokens, and would then be allowed everything."""
    for each in listeners:
        if each.sasl and OAUTHBEARER in settings.of_listener(each.name, "sasl.enabled.mechanisms"):
            proof, example = "token", "User:SUBJECT"
        elif not each.sasl and each.tls is not None and settings.of_listener(each.name, CLIENT_AUTH) == "required":
            proof, example = "certificate", "User:CN=NAME"
        else:
            continue
        raise SettingsRefusedError(
            f"{AUTHORIZER} is not set, so every client with a valid {proof} could do everything on the listener "
            f"{each.name}. To decide by ACLs, set {AUTHORIZER}={AUTHORIZERS[0]} and super.users={example}. If all of "
            f"these clients may do everything, set an empty {AUTHORIZER}."
        )
