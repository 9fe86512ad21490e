"""Decides what a client may send before it has authenticated, on a listener that requires authentication.

Source: Kafka's SaslServerAuthenticator.java (handleKafkaRequest), which closes the connection on everything else.
"""

from ottla.broker.requests import Refused, Session


def refuse_the_unauthenticated(session: Session) -> None:
    """Raise Refused for a client that has to authenticate: there is no mechanism yet by which it could."""
    if not session.authenticated:
        raise Refused(f"no SASL mechanism is enabled on listener {session.address.listener}")
