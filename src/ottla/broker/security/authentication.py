"""Says what a client may ask for before it has said who it is, on a listener that requires that.

Source: Kafka's SaslServerAuthenticator.java (handleKafkaRequest), which closes the connection on everything else.
"""

from typing import Final

BEFORE_AUTHENTICATION: Final = frozenset((17, 18, 36))
"""SaslHandshake, ApiVersions, SaslAuthenticate."""
