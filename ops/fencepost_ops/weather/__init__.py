"""Bad weather between a fleet and its servers: a TCP proxy that is late, silent, cut, or eats answers."""

from fencepost_ops.weather.proxy import Proxy
from fencepost_ops.weather.routed import RoutedFleet

__all__ = ["Proxy", "RoutedFleet"]
