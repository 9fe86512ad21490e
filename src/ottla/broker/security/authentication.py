"""Decides what a client may send before it has authenticated, on a listener that requires authentication.

Source: Kafka's SaslServerAuthenticator.java (handleKafkaRequest), which closes the connection on everything else.
"""

from ottla.broker.channel import Channel
from ottla.broker.requests import Refused


def refuse_the_unauthenticated(channel: Channel) -> None:
    """Raise Refused for a client that has to authenticate: there is no mechanism yet by which it could."""
    if not channel.authenticated:
        raise Refused(f"no SASL mechanism is enabled on listener {channel.identity.address.listener}")
