"""Our own address and interface, as the kernel sees them."""

import pytest

from trainer_agent.mpi.network import interface_of, own_address


@pytest.mark.parametrize(
    "towards, own", [("127.0.0.1", "127.0.0.1"), ("127.3.2.1", "127.0.0.1"), ("256.0.0.1", "127.0.0.1")]
)
def test_own_address(towards, own):
    """Where packets would leave from; nothing better is known of an address that is none."""
    assert own == own_address(towards)


def test_ipv6():
    """With IPv6 as well, where there is any."""
    assert own_address("::1") in ("::1", "127.0.0.1")


def test_interface_of():
    """The loopback has a name everywhere on Linux, and a documentation address is nobody's."""
    assert ("lo", "") == (interface_of("127.0.0.1"), interface_of("192.0.2.1"))
