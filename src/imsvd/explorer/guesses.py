"""How often wrong access tokens may be presented from one address."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from math import ceil

MOST_AT_ONCE = 10
SECONDS_EACH = 10.0
"""After the first `MOST_AT_ONCE` wrong tokens, one more may be tried in this time."""
MOST_ADDRESSES = 4096


class Guesses:
    """Counts wrong tokens by address; an address that has used up its guesses must wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Moment at which the last wrong token of an address is forgotten, latest change last.
        self._forgotten: OrderedDict[str, float] = OrderedDict()

    def wait(self, address: str) -> int:
        """Return the seconds until an address may present another token; 0 if it may now."""
        ahead = self._forgotten.get(_network(address), 0.0) - self._clock()
        return max(0, ceil(ahead - (MOST_AT_ONCE - 1) * SECONDS_EACH))

    def add(self, address: str) -> None:
        """Count a wrong token."""
        network, now = _network(address), self._clock()
        self._forgotten[network] = max(now, self._forgotten.get(network, now)) + SECONDS_EACH
        self._forgotten.move_to_end(network)
        while len(self._forgotten) > MOST_ADDRESSES:
            self._forgotten.popitem(last=False)


def _network(address: str) -> str:
    """Return what one client can be expected to own: an IPv4 address, or 64 bits of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
