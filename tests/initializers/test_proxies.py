"""Which proxy leads to an address."""

import pytest

from trainer_agent.initializers.proxies import proxy_of


@pytest.mark.parametrize(
    "environ,proxy",
    [
        ({}, ""),
        ({"HTTP_PROXY": "http://p:1"}, ""),
        ({"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1", "https_proxy": "http://small:1"}, "http://small:1"),
        ({"HTTPS_PROXY": "p:1"}, "http://p:1"),
        ({"HTTPS_PROXY": ""}, ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, ""),
        ({"HTTPS_PROXY": "http://p:1", "no_proxy": ".example.com"}, ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example.com"}, ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "s3.example.com:9000"}, ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other.com, ple.com"}, "http://p:1"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other.com,*"}, ""),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://p:1"),
    ],
)
def test_the_proxy_of_an_address(environ, proxy):
    assert proxy == proxy_of("https://user@s3.example.com:9000/bucket", environ)


@pytest.mark.parametrize(
    "host,listed,direct",
    [
        ("10.96.0.1", "10.0.0.0/8", True),
        ("10.96.0.1:6443", ".svc, 10.0.0.0/8,192.168.0.0/16", True),
        ("10.96.0.1", "10.96.0.1/12", True),  # with bits of a host
        ("10.96.0.1", "10.96.0.1", True),
        ("11.96.0.1", "10.0.0.0/8", False),
        ("10.96.0.1", "fd00::/8", False),
        ("10.96.0.1", "10.0.0.0/33", False),
        ("[fd00::1]:9000", "fd00::/8", True),
        ("[fd00::1]:9000", "fd00::1", True),
        ("[fd00::1]:9000", "[fd00::1]", True),
        ("[fe80::1]:9000", "fd00::/8", False),
        ("10.example.com", "10.0.0.0/8", False),
    ],
)
def test_no_proxy_may_name_networks(host, listed, direct):
    """As clusters list their pods and services."""
    environ = {"HTTP_PROXY": "http://p:1", "NO_PROXY": listed}

    assert ("" if direct else "http://p:1") == proxy_of(f"http://{host}/bucket", environ)
