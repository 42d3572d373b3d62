"""Requests of tools: paths, headers, whole URLs, and what they are bound to."""

import pytest

from fencepost.dependencies import DependencySpec
from fencepost.outbound import OutboundRefused
from fencepost.tools import Request


@pytest.mark.parametrize(
    "path",
    ["", "x", "//evil.test/x", "/a b", "/a\n", "/a?b", "/a#b", "/a/../b", "/a/%2E%2e/b", "/./a", "/a\\b"],
)
def test_a_path_that_could_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        Request.get(path)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Idempotency-Key", "added when the request is sent"),
        ("fencepost-run", "added when the request is sent"),
        ("Host", "added when the request is sent"),
        ("Transfer-Encoding", "added when the request is sent"),
        ("Authorization", "would be stored"),
        ("cookie", "would be stored"),
        ("X A", "does not allow"),
        ("X-A\r\nX-B", "does not allow"),
        ("", "does not allow"),
    ],
)
def test_a_header_that_is_ours_secret_or_malformed_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Request.get("/x", headers={name: "v"})


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "\0", "é"])
def test_a_header_value_that_http_does_not_allow_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="does not allow"):
        Request.get("/x", headers={"X-A": value})


def test_a_method_is_in_capitals() -> None:
    with pytest.raises(ValueError, match="not an HTTP method"):
        Request("get", "/x")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://a.example.com", "https://a.example.com/"),
        ("HTTPS://A.Example.com:443/x", "https://a.example.com/x"),
        (
            "https://a.example.com/a%2Fb/|c?q=x%20y&p[]={1}|2",
            "https://a.example.com/a%2Fb/%7Cc?q=x%20y&p[]={1}|2",
        ),
        ('https://a.example.com/?q="<x>"', "https://a.example.com/?q=%22%3Cx%3E%22"),
    ],
)
def test_a_whole_url_is_bound_as_it_is(url: str, target: str) -> None:
    assert Request.get(url).bind("https://wallet.test/v1").target == target
    assert Request.get(url).bind(None).target == target


def test_a_whole_url_may_be_given_more_of_a_query() -> None:
    bound = Request.get("https://a.example.com/x?a=1", query={"b": "2 3"}).bind(None)
    assert bound.target == "https://a.example.com/x?a=1&b=2%203"
    with pytest.raises(ValueError, match="there is no base_url"):
        Request.get("/x").bind(None)


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example.com/../x",
        "https://a.example.com//x",
        "https://a.example.com/%2e%2e/x",
        "file:///x",
        "x:y",
    ],
)
def test_a_whole_url_that_could_lead_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(OutboundRefused):
        Request.get(url)


def test_a_dependency_binds_to_its_own_hosts_only() -> None:
    spec = DependencySpec("w", "https://pay.example/v1", hosts=("*.example.com",))
    assert spec.bind(Request.get("/x")).target == "https://pay.example/v1/x"
    assert spec.bind(Request.get("https://a.example.com/x")).target == "https://a.example.com/x"
    with pytest.raises(OutboundRefused, match=r"https://evil\.example is not among the hosts"):
        spec.bind(Request.get("https://evil.example/x"))
    with pytest.raises(OutboundRefused, match="is not among the hosts"):  # it would leave /v1
        spec.bind(Request.get("https://pay.example/admin"))
    assert DependencySpec("w", capability=True).capability_header == "Fencepost-Capability"
    assert DependencySpec("w", capability="X-Leave").capability_header == "X-Leave"
    assert spec.capability_header is None


@pytest.mark.parametrize(
    "url",
    ["", "wallet.test", "ftp://x", "http://", "http://x?y=1", "http://x#y", "http://u:p@x", "http://x:port"],
)
def test_a_base_url_that_cannot_be_bound_to_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        Request.get("/x").bind(url)
    assert "u:p" not in str(caught.value)
