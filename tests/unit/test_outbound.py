"""Where a request may go, as a table: URLs that mean one thing only, addresses, and a dependency's rules."""

from ipaddress import ip_address
from typing import Literal

import pytest

from fencepost.outbound import (
    Kind,
    Outbound,
    OutboundRefused,
    Reach,
    host_rule,
    kind_of,
    networks,
    outbound,
    parse,
)

NONE: tuple[str, ...] = ()
Private = Literal[True] | tuple[str, ...]


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("https://api.example.com", "https://api.example.com"),
        ("https://api.example.com/a?b=c", "https://api.example.com/a?b=c"),
        ("HTTPS://API.Example.COM/A", "https://api.example.com/A"),
        ("https://api.example.com:443/", "https://api.example.com/"),
        ("http://api.example.com:443/", "http://api.example.com:443/"),
        ("http://wallet_service:8080/v1", "http://wallet_service:8080/v1"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("http://127.0.0.1:9/x", "http://127.0.0.1:9/x"),
        ("http://[::1]:9/x", "http://[::1]:9/x"),
        ("http://[2001:DB8:0:0::5]/", "http://[2001:db8::5]/"),
        ("https://a.example?x=//evil.example/@", "https://a.example?x=//evil.example/@"),
        ("https://1.example", "https://1.example"),
    ],
)
def test_a_url_has_one_meaning_and_one_spelling(url: str, meant: str) -> None:
    assert parse(url).url == meant
    assert parse(meant) == parse(url)


HOSTILE_URLS = [
    "",
    "example.com",
    "//example.com/",
    "/path",
    "https:/example.com",
    "https:example.com",
    "https://",
    "https:///path",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
    "ftp://example.com/",
    "unix:///var/run/docker.sock",
    "javascript://example.com/%0aalert(1)",
    "data://text/plain,x",
    "https://user@example.com/",
    "https://user:pass@example.com/",
    "https://example.com@evil.example/",
    "https://example.com:80@evil.example/",
    "https://@example.com/",
    "https://example.com\\@evil.example/",
    "https://evil.example\\.example.com/",
    "https:\\\\example.com",
    "https://example.com/a\\b",
    "https://example.com/#@evil.example",
    "https://example.com#.evil.example/",
    "https://exa mple.com/",
    "https://example.com/a b",
    "https://example.com/\r\nHost: evil.example",
    "https://example.com\t/",
    " https://example.com/",
    "https://example.com\0.evil.example/",
    "https://example.com%2eevil.example/",
    "https://example.com%00/",
    "https://example%2ecom/",
    "https://bücher.example/",
    "https://１２７.0.0.1/",
    "https://127。0。0。1/",
    "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "https://example.com\u200b/",
    "https://example.com./",
    "https://.example.com/",
    "https://example..com/",
    "https://-example.com/",
    "https://example-.com/",
    "https://" + "a" * 64 + ".com/",
    "https://" + "a." * 127 + "com/",
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:99999999/",
    "https://example.com:80:80/",
    "https://example.com:-1/",
    "https://example.com:８０/",
    "https://example.com:0x50/",
    "https://*.example.com/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0X7F.1/",
    "http://0177.0.0.1/",
    "http://127.0.0.01/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0/",
    "http://127.0.0.1./",
    "http://127.0.0.256/",
    "http://1.2.3.4.5/",
    "http://127.0.0.0x1/",
    "http://0x/",
    "http://example.0x7f/",
    "http://example.123/",
    "http://[::1%25lo]/",
    "http://[fe80::1%eth0]/",
    "http://[fe80::1%25eth0]/",
    "http://[::1/",
    "http://::1/",
    "http://[127.0.0.1]/",
    "http://[::1]evil.example/",
    "http://[::1]:/",
    "http://[]/",
    "http://[v1.x]/",
    "http://[::ffff:127.1]/",
    "http://[::1][::2]/",
    "https://example.com/" + "a" * 9000,
]


@pytest.mark.parametrize("url", HOSTILE_URLS, ids=ascii)
def test_what_two_readers_could_read_differently_is_refused(url: str) -> None:
    with pytest.raises(OutboundRefused) as caught:
        parse(url)
    assert caught.value.code == "outbound_refused"
    assert "pass@" not in str(caught.value)


ADDRESSES = [
    ("8.8.8.8", Kind.PUBLIC),
    ("172.15.255.255", Kind.PUBLIC),
    ("172.32.0.0", Kind.PUBLIC),
    ("100.128.0.0", Kind.PUBLIC),
    ("2606:4700::1111", Kind.PUBLIC),
    ("0.0.0.0", Kind.UNSPECIFIED),  # noqa: S104 - an address, nothing is bound
    ("0.1.2.3", Kind.UNSPECIFIED),
    ("10.0.0.1", Kind.PRIVATE),
    ("172.16.0.1", Kind.PRIVATE),
    ("172.31.255.255", Kind.PRIVATE),
    ("192.168.1.1", Kind.PRIVATE),
    ("100.64.0.1", Kind.SHARED),
    ("100.127.255.254", Kind.SHARED),
    ("127.0.0.1", Kind.LOOPBACK),
    ("127.255.255.254", Kind.LOOPBACK),
    ("169.254.1.1", Kind.LINK_LOCAL),
    ("169.254.169.254", Kind.METADATA),
    ("169.254.170.2", Kind.METADATA),
    ("100.100.100.200", Kind.METADATA),
    ("168.63.129.16", Kind.METADATA),
    ("192.0.0.192", Kind.METADATA),
    ("192.0.0.1", Kind.RESERVED),
    ("192.0.2.1", Kind.RESERVED),
    ("192.88.99.1", Kind.RESERVED),
    ("198.18.0.1", Kind.RESERVED),
    ("198.51.100.1", Kind.RESERVED),
    ("203.0.113.1", Kind.RESERVED),
    ("224.0.0.1", Kind.MULTICAST),
    ("239.255.255.250", Kind.MULTICAST),
    ("240.0.0.1", Kind.RESERVED),
    ("255.255.255.255", Kind.RESERVED),
    ("::", Kind.UNSPECIFIED),
    ("::1", Kind.LOOPBACK),
    ("::2", Kind.RESERVED),
    ("::127.0.0.1", Kind.RESERVED),
    ("::ffff:127.0.0.1", Kind.LOOPBACK),
    ("::ffff:10.0.0.1", Kind.PRIVATE),
    ("::ffff:169.254.169.254", Kind.METADATA),
    ("::ffff:0.0.0.0", Kind.UNSPECIFIED),
    ("::ffff:8.8.8.8", Kind.PUBLIC),
    ("::ffff:0:127.0.0.1", Kind.RESERVED),
    ("64:ff9b::127.0.0.1", Kind.LOOPBACK),
    ("64:ff9b::10.1.2.3", Kind.PRIVATE),
    ("64:ff9b::169.254.169.254", Kind.METADATA),
    ("64:ff9b::8.8.8.8", Kind.PUBLIC),
    ("64:ff9b:1::10.0.0.1", Kind.RESERVED),
    ("2002:7f00:1::", Kind.LOOPBACK),
    ("2002:a9fe:a9fe::1", Kind.METADATA),
    ("2002:a00:1::", Kind.PRIVATE),
    ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Kind.RESERVED),
    ("2600:1::5efe:10.0.0.1", Kind.PRIVATE),
    ("2600:1::200:5efe:127.0.0.1", Kind.LOOPBACK),
    ("fe80::5efe:8.8.8.8", Kind.LINK_LOCAL),
    ("fc00::1", Kind.PRIVATE),
    ("fd12:3456::1", Kind.PRIVATE),
    ("fd00:ec2::254", Kind.METADATA),
    ("fd20:ce::254", Kind.METADATA),
    ("fe80::1", Kind.LINK_LOCAL),
    ("febf::1", Kind.LINK_LOCAL),
    ("fec0::1", Kind.RESERVED),
    ("ff02::1", Kind.MULTICAST),
    ("2001:db8::1", Kind.RESERVED),
    ("3fff::1", Kind.RESERVED),
    ("100::1", Kind.RESERVED),
    ("5f00::1", Kind.RESERVED),
    ("4000::1", Kind.RESERVED),
]


@pytest.mark.parametrize(("text", "kind"), ADDRESSES)
def test_what_an_address_is(text: str, kind: Kind) -> None:
    assert kind_of(ip_address(text)) is kind


INSIDE = frozenset({Kind.PUBLIC, Kind.LOOPBACK, Kind.PRIVATE, Kind.SHARED})


@pytest.mark.parametrize(("text", "kind"), ADDRESSES)
def test_what_may_be_connected_to(text: str, kind: Kind) -> None:
    assert Reach().admits(ip_address(text)) == (kind is Kind.PUBLIC)
    assert Reach(private=True).admits(ip_address(text)) == (kind in INSIDE)
    everything = Reach(networks=networks(["0.0.0.0/0", "::/0"]))
    assert everything.admits(ip_address(text)) == (kind is not Kind.METADATA)
    assert Reach(networks=networks([text])).admits(ip_address(text))


def test_a_network_admits_what_is_carried_to_it() -> None:
    ten = Reach(networks=networks(["10.1.0.0/16"]))
    assert ten.admits(ip_address("::ffff:10.1.2.3"))
    assert ten.admits(ip_address("64:ff9b::10.1.2.3"))
    assert not ten.admits(ip_address("10.2.0.1"))


def test_all_addresses_of_a_name_are_judged() -> None:
    assert [str(a) for a in Reach().judge("a.example", ["8.8.8.8", "2606:4700::1111"])] == [
        "8.8.8.8",
        "2606:4700::1111",
    ]
    for addresses in (["8.8.8.8", "10.0.0.1"], ["fe80::1%eth0"], ["what"], []):
        with pytest.raises(OutboundRefused) as caught:
            Reach().judge("a.example", addresses)
        assert "10.0.0.1" not in str(caught.value)  # a model may read it


RULES = outbound(
    "https://pay.example/v1", ("api.example.com", "*.example.org", "http://plain.example:8080"), NONE
)


@pytest.mark.parametrize(
    ("url", "admitted"),
    [
        ("https://pay.example/v1/x", True),
        ("https://pay.example/other", True),
        ("http://pay.example/v1/x", False),
        ("https://pay.example:8443/v1/x", False),
        ("https://evil.pay.example/", False),
        ("https://pay.example.evil.example/", False),
        ("https://api.example.com/x", True),
        ("https://API.example.com:443/x", True),
        ("http://api.example.com/x", False),
        ("https://api.example.com:444/x", False),
        ("https://xapi.example.com/x", False),
        ("https://a.api.example.com/x", False),
        ("https://a.example.org/", True),
        ("https://a.b.example.org/", True),
        ("https://example.org/", False),
        ("https://evilexample.org/", False),
        ("https://example.org.evil.example/", False),
        ("http://plain.example:8080/", True),
        ("http://plain.example/", False),
        ("https://plain.example:8080/", False),
        ("https://8.8.8.8/", False),
        ("http://127.0.0.1/", False),
        ("http://localhost/", False),
    ],
)
def test_only_what_is_declared_is_admitted(url: str, *, admitted: bool) -> None:
    if admitted:
        assert RULES.admit(url).url.startswith("http")
    else:
        with pytest.raises(OutboundRefused, match="not among the hosts of this dependency"):
            RULES.admit(url)


def test_a_host_by_another_port_or_scheme_is_refused_with_how_to_name_it() -> None:
    with pytest.raises(OutboundRefused, match="a host is https on port 443 unless written like this one"):
        RULES.admit("https://plain.example:8080/")
    with pytest.raises(OutboundRefused, match=r"of this dependency$"):
        RULES.admit("https://8.8.8.8/")


@pytest.mark.parametrize(
    ("base", "private", "url", "reach"),
    [
        ("http://127.0.0.1:9", NONE, "http://127.0.0.1:9/", Reach(networks=networks(["127.0.0.1"]))),
        ("http://[::1]:9", NONE, "http://[::1]:9/", Reach(networks=networks(["::1"]))),
        ("http://localhost", NONE, "http://localhost/x", Reach(private=True)),
        ("http://wallet:8080", NONE, "http://wallet:8080/x", Reach(private=True)),
        ("http://a.b.svc", NONE, "http://a.b.svc/x", Reach(private=True)),
        ("http://a.cluster.local", NONE, "http://a.cluster.local/x", Reach(private=True)),
        ("https://a.internal", NONE, "https://a.internal/x", Reach(private=True)),
        ("https://localinternal.example", NONE, "https://localinternal.example/x", Reach()),
        ("https://pay.example", NONE, "https://pay.example/x", Reach()),
        ("https://pay.example", True, "https://pay.example/x", Reach(private=True)),
        ("https://pay.example", NONE, "https://api.example.com/x", Reach()),
        ("http://localhost", NONE, "https://api.example.com/x", Reach()),
        (
            "http://localhost",
            ("10.0.0.0/8",),
            "https://api.example.com/x",
            Reach(networks=networks(["10.0.0.0/8"])),
        ),
        (None, True, "https://api.example.com/x", Reach(private=True)),
    ],
)
def test_private_addresses_are_the_declarations_own_word(
    base: str | None, private: Private, url: str, reach: Reach
) -> None:
    rules = outbound(base, ("api.example.com",), private)
    assert rules.reach(rules.admit(url)) == reach


@pytest.mark.parametrize(
    ("hosts", "private", "url"),
    [
        (("127.0.0.1",), NONE, "https://127.0.0.1/"),
        (("169.254.169.254",), True, "https://169.254.169.254/"),
        (("http://[::ffff:127.0.0.1]",), NONE, "http://[::ffff:127.0.0.1]/"),
        (("http://100.100.100.200",), ("100.64.0.0/10",), "http://100.100.100.200/"),
        (("http://0.0.0.0",), True, "http://0.0.0.0/"),
    ],
)
def test_an_address_from_arguments_has_to_be_outside_too(
    hosts: tuple[str, ...], private: Private, url: str
) -> None:
    with pytest.raises(OutboundRefused, match="address"):
        outbound(None, hosts, private).admit(url)
    assert outbound(None, hosts, (url.split("//")[1].strip("/[]"),)).admit(url) == parse(url)


def test_the_dependencys_headers_go_to_its_own_places_only() -> None:
    assert RULES.trusts(RULES.admit("https://pay.example/x"))
    assert not RULES.trusts(RULES.admit("https://api.example.com/x"))
    bare = outbound(None, ("api.example.com", "*.example.org"), NONE)
    assert bare.trusts(bare.admit("https://api.example.com/x"))
    assert not bare.trusts(bare.admit("https://a.example.org/x"))


@pytest.mark.parametrize(
    ("hosts", "private"),
    [
        (("",), NONE),
        (("*.com",), NONE),
        (("a.*.com",), NONE),
        (("*.*.com",), NONE),
        (("ftp://a.example",), NONE),
        (("https://a.example/path",), NONE),
        (("u@a.example",), NONE),
        (("a.example:0",), NONE),
        (("*.1.2.3.4",), NONE),
        (("*",), True),
        ((), ("10.0.0.1/8",)),
        ((), ("inside",)),
    ],
)
def test_a_declaration_that_says_too_much_or_nothing_is_refused(
    hosts: tuple[str, ...], private: Private
) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        outbound("https://pay.example", hosts, private)


def test_a_star_covers_names_only() -> None:
    assert host_rule("*").covers(parse("https://any.example/"))
    assert not host_rule("*").covers(parse("https://8.8.8.8/"))
    with pytest.raises(OutboundRefused):
        Outbound().admit("https://any.example/")
