"""Reads IP addresses as operators write them, and limits for single ones.

Host names are not accepted, because a node does not wait for name resolution.

Source: Kafka's SocketServerConfigs.java (max.connections.per.ip.overrides), ConnectionQuotas.
"""

from __future__ import annotations

import ipaddress
from typing import TypeAlias

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Host: TypeAlias = IpAddress | str
"""An address, or the text if it is no address."""


def ip_address(text: str) -> IpAddress:
    """The address; an IPv4 address mapped to IPv6 equals the IPv4 one. Raises ValueError."""
    address = ipaddress.ip_address(text.strip())
    return getattr(address, "ipv4_mapped", None) or address


def host(text: str) -> Host:
    """The address, if the text is one."""
    try:
        return ip_address(text)
    except ValueError:
        return text


def limits_by_address(text: str) -> dict[Host, int]:
    """`address:count`, separated by commas. Raises ValueError with one sentence."""
    limits: dict[Host, int] = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        address, _, count = entry.rpartition(":")
        try:
            limits[ip_address(address)] = int(count)
        except ValueError:
            raise ValueError(f"{entry} is not an IP address and a number with a colon between them") from None
    return limits
