"""Where a request may go: a URL read in one way only, what an address is, and a dependency's own rules. PURE.

A tool's target may come from a model's arguments, and what leaves this process is inside the network then. So
a dependency says where it goes: to its `base_url`, and to the `hosts` it names, nowhere else. A name is
resolved once, every address it has is judged here, and the connection goes to a judged one.

- `base_url` is its developer's word. An address written in it is reached, whatever it is; a name that can
  only be an inside one (`localhost`, one label, `.local`, `.internal`, `.svc`, `.home.arpa`) may lead to
  loopback and private addresses. Any other name has to lead outside.
- A host of `hosts` has to lead outside.
- `private=True` lets both lead to loopback, private and shared addresses; `private=("10.1.0.0/16",)` to what
  lies in these networks. Of the metadata services of clouds each has to be named alone, as a network of one.

What is what: the IANA special-purpose address registries for IPv4 and IPv6 (RFC 6890), and for addresses that
carry another RFC 4291 (mapped), RFC 6052 (NAT64), RFC 3056 (6to4), RFC 4380 (Teredo) and RFC 5214 (ISATAP).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PORTS: Final = {"http": 80, "https": 443}
MAX_URL_CHARS: Final = 8192

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)")
_SENDABLE = re.compile(r"[\x21-\x5b\x5d-\x7e]*")  # visible ASCII without the backslash
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_V6 = re.compile(r"[0-9A-Fa-f:.]+")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_INSIDE_NAME = re.compile(r"[^.]+|(?:.+\.)?(?:localhost|local|internal|svc|home\.arpa)")
_RULE = re.compile(r"(?:(https?)://)?(\*\.)?([^/@?#]+?|\[[^\[\]]*\])(?::([0-9]{1,5}))?")


class OutboundRefused(ValueError):
    """A request may not go where it would; nothing of it has been sent."""

    code: Final = "outbound_refused"


class Kind(StrEnum):
    """What an address is."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    SHARED = "shared"
    """Carrier-grade NAT, RFC 6598; inside of clouds too."""
    LINK_LOCAL = "link-local"
    METADATA = "metadata"
    """Where a cloud tells a machine its own credentials."""
    MULTICAST = "multicast"
    UNSPECIFIED = "unspecified"
    RESERVED = "reserved"


_INSIDE: Final = frozenset({Kind.LOOPBACK, Kind.PRIVATE, Kind.SHARED})

_METADATA: Final = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # most clouds
            "169.254.170.2",  # containers
            "169.254.170.23",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
        ),
    )
)

_V4: Final = tuple(
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", Kind.UNSPECIFIED),
        ("10.0.0.0/8", Kind.PRIVATE),
        ("100.64.0.0/10", Kind.SHARED),
        ("127.0.0.0/8", Kind.LOOPBACK),
        ("169.254.0.0/16", Kind.LINK_LOCAL),
        ("172.16.0.0/12", Kind.PRIVATE),
        ("192.0.0.0/24", Kind.RESERVED),
        ("192.0.2.0/24", Kind.RESERVED),
        ("192.88.99.0/24", Kind.RESERVED),
        ("192.168.0.0/16", Kind.PRIVATE),
        ("198.18.0.0/15", Kind.RESERVED),
        ("198.51.100.0/24", Kind.RESERVED),
        ("203.0.113.0/24", Kind.RESERVED),
        ("224.0.0.0/4", Kind.MULTICAST),
        ("240.0.0.0/4", Kind.RESERVED),
    )
)

# Only 2000::/3 is handed out for the public net; what is none of these is reserved.
_V6_KINDS: Final = tuple(
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", Kind.UNSPECIFIED),
        ("::1/128", Kind.LOOPBACK),
        ("fc00::/7", Kind.PRIVATE),
        ("fe80::/10", Kind.LINK_LOCAL),
        ("ff00::/8", Kind.MULTICAST),
        ("2001::/23", Kind.RESERVED),  # protocol assignments, Teredo among them
        ("2001:db8::/32", Kind.RESERVED),
        ("3fff::/20", Kind.RESERVED),
        ("2000::/3", Kind.PUBLIC),
    )
)
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


def carried(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address carries, by which a gateway may reach it; None for others."""
    if isinstance(address, IPv4Address):
        return None
    number = int(address)
    if address in _SIX_TO_FOUR:
        return IPv4Address(number >> 80 & 0xFFFFFFFF)
    if address in _MAPPED or address in _NAT64 or number >> 32 & 0xFFFFFFFF in _ISATAP:
        return IPv4Address(number & 0xFFFFFFFF)
    return None


def kind_of(address: Address) -> Kind:
    """What an address is; one that carries another is what that is, unless it is worse itself. Total."""
    if address in _METADATA:
        return Kind.METADATA
    if isinstance(address, IPv4Address):
        return next((kind for network, kind in _V4 if address in network), Kind.PUBLIC)
    inner = carried(address)
    if inner is not None:
        kind = kind_of(inner)
        if kind is not Kind.PUBLIC or address in _MAPPED or address in _NAT64:
            return kind
    return next((kind for network, kind in _V6_KINDS if address in network), Kind.RESERVED)


@dataclass(frozen=True, slots=True)
class Target:
    """A URL as every reader must read it. `rest` is path and query; `address` is the host, if it is one."""

    scheme: str
    host: str
    port: int
    rest: str = ""
    address: Address | None = None

    @property
    def origin(self) -> str:
        """Scheme, host and, unless it is the scheme's own, port."""
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    @property
    def url(self) -> str:
        """The whole in one spelling."""
        return self.origin + self.rest


def parse(url: str) -> Target:
    """`url` as what it leads to. OutboundRefused for everything two readers could take for different hosts.

    Refused: other schemes than http and https, a user or password, a fragment, backslashes, white space,
    controls, what is not ASCII (a name in another script is written `xn--…`), addresses in any other form
    than four decimal numbers or brackets, zones, and names that end in a dot.
    """
    if len(url) > MAX_URL_CHARS:
        raise OutboundRefused(f"a URL has at most {MAX_URL_CHARS} characters")
    if not _SENDABLE.fullmatch(url):
        raise OutboundRefused("a URL holds visible ASCII only and no backslash; names are written xn--…")
    if (parts := _URL.fullmatch(url)) is None:
        raise OutboundRefused("a URL must look like https://host[:port][/path]")
    scheme, authority, rest = parts[1].lower(), parts[2], parts[3]
    if scheme not in PORTS:
        raise OutboundRefused(f"requests go by http or https, not by {scheme[:20]}")
    if "@" in authority:
        raise OutboundRefused("a URL must not carry a user or password")
    if "#" in rest:
        raise OutboundRefused("a URL must not carry a fragment")
    if (place := _AUTHORITY.fullmatch(authority)) is None:
        raise OutboundRefused("a URL must look like https://host[:port][/path]")
    host, address = _host(place[1])
    port = int(place[2]) if place[2] else PORTS[scheme]
    if not 1 <= port <= 65535:
        raise OutboundRefused(f"{port} is no port")
    return Target(scheme, host, port, rest, address)


def _host(text: str) -> tuple[str, Address | None]:
    if text.startswith("["):
        inner = text[1:-1]
        try:
            address = IPv6Address(inner if _V6.fullmatch(inner) else "")
        except ValueError:
            raise OutboundRefused("an address in brackets is one of IPv6, without a zone") from None
        return f"[{address}]", address
    name = text.lower()
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1] or (labels[-2] if len(labels) > 1 else "")):
        try:
            found = IPv4Address(name)
        except ValueError:
            raise OutboundRefused("an address is four decimal numbers, without leading zeros") from None
        return str(found), found
    if not name or len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise OutboundRefused(f"{name[:80]!r} is no name of a host; it has no dot at its end")
    return name, None


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of `hosts`: an exact host, or if `wild` every name that ends so."""

    scheme: str
    host: str
    port: int
    wild: bool = False

    def covers(self, target: Target) -> bool:
        """Whether it names the target."""
        if (self.scheme, self.port) != (target.scheme, target.port):
            return False
        if self.wild:
            return target.address is None and target.host.endswith(self.host)
        return target.host == self.host


@lru_cache(maxsize=1024)
def host_rule(text: str) -> HostRule:
    """`host`, `*.host` or `*` (any name), by https and its port; `http://host` and `host:port` say another.

    ValueError for anything else, and for a pattern that covers a whole top-level domain.
    """
    if (parts := _RULE.fullmatch(text)) is None:
        raise ValueError(
            f"{text[:80]!r} is no host; write host, *.host or *, with http:// or :port where needed"
        )
    scheme, wild, host = parts[1] or "https", parts[2] is not None, parts[3]
    if host == "*" and not wild:
        return HostRule(scheme, "", int(parts[4] or PORTS[scheme]), wild=True)
    target = parse(f"{scheme}://{host}" + (f":{parts[4]}" if parts[4] else ""))
    if wild and (target.address is not None or "." not in target.host):
        raise ValueError(f"{text[:80]!r} covers too much; a pattern is *. and a name of two labels or more")
    return HostRule(scheme, f".{target.host}" if wild else target.host, target.port, wild=wild)


@dataclass(frozen=True, slots=True)
class Reach:
    """Which addresses a connection may go to: public ones, inside ones if `private`, and these networks."""

    private: bool = False
    networks: tuple[Network, ...] = ()

    def admits(self, address: Address) -> bool:
        """Whether it may be connected to."""
        kind = kind_of(address)
        if kind is Kind.PUBLIC:
            return True
        spoken = {address, carried(address)}
        named = [network for network in self.networks if any(a in network for a in spoken if a is not None)]
        if kind is Kind.METADATA:
            return any(network.num_addresses == 1 for network in named)
        return bool(named) or (self.private and kind in _INSIDE)

    def judge(self, host: str, addresses: Iterable[str]) -> list[Address]:
        """The addresses of a host, all of them admitted. OutboundRefused if one is not, or there is none.

        The addresses themselves are not told: whoever proposed the host may read the refusal.
        """
        found = [_read(host, text) for text in addresses]
        for address in found:
            if not self.admits(address):
                raise OutboundRefused(
                    f"{host} leads to a {kind_of(address)} address; "
                    "if that is meant, say so with app.dependency(..., private=...)"
                )
        if not found:
            raise OutboundRefused(f"{host} has no address")
        return found


def _read(host: str, text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError:
        raise OutboundRefused(f"{host} leads to what is no address") from None


@dataclass(frozen=True, slots=True)
class Outbound:
    """Where one dependency may go."""

    base: Target | None = None
    hosts: tuple[HostRule, ...] = ()
    private: bool = False
    networks: tuple[Network, ...] = ()

    def admit(self, url: str) -> Target:
        """The target of a request; OutboundRefused if it is not one of this dependency's."""
        target = parse(url)
        if not self._at_base(target):
            self.named(target)
        if target.address is not None:
            self.reach(target).judge(target.host, [str(target.address)])
        return target

    def named(self, target: Target) -> None:
        """OutboundRefused for a target that is none of `hosts`, its base_url's own included."""
        if not any(rule.covers(target) for rule in self.hosts):
            close = any(
                replace(rule, scheme=target.scheme, port=target.port).covers(target) for rule in self.hosts
            )
            hint = "; a host is https on port 443 unless written like this one" if close else ""
            raise OutboundRefused(f"{target.origin} is not among the hosts of this dependency{hint}")

    def reach(self, target: Target) -> Reach:
        """Which addresses an admitted target may be connected at."""
        if not self._at_base(target):
            return Reach(self.private, self.networks)
        if target.address is not None:
            return Reach(self.private, (*self.networks, ip_network(target.address)))
        return Reach(self.private or _INSIDE_NAME.fullmatch(target.host) is not None, self.networks)

    def trusts(self, target: Target) -> bool:
        """Whether the dependency's own headers go there: to its base_url; without one, to exact `hosts`."""
        if self.base is not None:
            return self._at_base(target)
        return any(rule.covers(target) and not rule.wild for rule in self.hosts)

    def _at_base(self, target: Target) -> bool:
        base = self.base
        return base is not None and (
            (base.scheme, base.host, base.port) == (target.scheme, target.host, target.port)
        )


@lru_cache(maxsize=1024)
def outbound(
    base_url: str | None, hosts: tuple[str, ...], private: Literal[True] | tuple[str, ...]
) -> Outbound:
    """The rules of a dependency's declaration; `private` is `()` for none. ValueError for what cannot be."""
    base = None if base_url is None else parse(base_url)
    rules = tuple(map(host_rule, hosts))
    if private is True and any(rule.wild and not rule.host for rule in rules):
        raise ValueError("hosts=('*',) with private=True reach everything inside; name the networks")
    return Outbound(base, rules, private is True, () if private is True else networks(private))


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Networks as written. ValueError for what is none, and for an address that is not a network's first."""
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise ValueError(f"private={texts!r} must hold networks such as 10.1.0.0/16: {error}") from None
