"""addresses: a bounded wait for the addresses of several names."""

import pytest
import structlog

from trainer_agent.addresses import wait_for_addresses
from trainer_agent.errors import RetryError
from trainer_agent.testing import FakeHost

HINT = "check that these pods exist and that their headless Service has publishNotReadyAddresses: true"


def wait(tmp_path, names, names_at, *, timeout_s=60.0):
    """Return what the names resolve to, in order, the seconds that were waited, and the log."""
    host = FakeHost(tmp_path, names_at=names_at)
    with structlog.testing.capture_logs() as logs:
        found = wait_for_addresses(names, host, timeout_s=timeout_s)
    return list(found.items()), host.slept, logs


def test_names_that_are_there(tmp_path):
    """One address each, in the order of the names, without a wait."""
    found = wait(tmp_path, ["b", "a"], {"a": ["10.0.0.1", "10.0.0.9"], "b": ["10.0.0.2"]})
    assert ([("b", "10.0.0.2"), ("a", "10.0.0.1")], 0, []) == found


def test_ipv4_is_preferred(tmp_path):
    """A name with both has its IPv4 address, one with IPv6 alone has that."""
    found, _, _ = wait(tmp_path, ["a", "b"], {"a": ["fd00::1", "10.0.0.1"], "b": ["fd00::2"]})
    assert [("a", "10.0.0.1"), ("b", "fd00::2")] == found


def test_addresses_are_not_asked_for(tmp_path):
    """An address is its own, whatever a name server would say."""
    found = wait(tmp_path, ["10.0.0.1", "fd00::1"], {}, timeout_s=0)
    assert ([("10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1")], 0, []) == found


def test_late_names(tmp_path):
    """They are asked for again until they are there; those that are there are not asked again."""
    names_at = {"a": [["10.0.0.1"], ["10.9.9.9"]], "b": [[], [], ["10.0.0.2"]], "c": [[], ["10.0.0.3"]]}
    found = wait(tmp_path, ["a", "b", "c"], names_at)
    assert ([("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")], 1.0, []) == found


@pytest.mark.parametrize("timeout_s, slept", [(0, 0.0), (0.7, 0.7), (20, 20.0)])
def test_names_that_never_come(tmp_path, timeout_s, slept):
    """All that are missing are named when the time is over, with the reason, and it may pass elsewhere."""
    host = FakeHost(tmp_path, names_at={"b": ["10.0.0.2"]})
    with pytest.raises(RetryError) as gave_up:
        wait_for_addresses(["a", "b", "c"], host, timeout_s=timeout_s)
    reasons = "a does not resolve (Name or service not known); c does not resolve (Name or service not known)"
    message = f"2 of 3 hosts have no address after {timeout_s} s: {reasons}"
    assert ("names-missing", message, HINT) == (gave_up.value.code, gave_up.value.message, gave_up.value.hint)
    assert slept == pytest.approx(host.slept)


def test_progress(tmp_path):
    """Every ten seconds a line names those that are missing."""
    late = [[]] * 50 + [["10.0.0.1"]]
    _, slept, logs = wait(tmp_path, ["a", "b", "c"], {"a": late, "b": ["10.0.0.2"], "c": [[]] * 25 + [["10.0.0.3"]]})
    line = {"event": "waiting for names", "log_level": "info", "timeout_s": 60.0}
    expected = [{**line, "missing": ["a", "c"], "waited_s": 10}, {**line, "missing": ["a"], "waited_s": 20}]
    assert (25.0, expected) == (slept, logs)


class Listening(FakeHost):
    """Keep what is asked for and how long that may take."""

    def resolve_all(self, names, *, timeout_s):
        self.clock += 1
        self.asked = [*getattr(self, "asked", []), (list(names), round(timeout_s, 1))]
        return super().resolve_all(names, timeout_s=timeout_s)


def test_lookups_keep_the_bound(tmp_path):
    """A lookup may take what is left, ten seconds at most, a moment at the end; only what is missing is asked for."""
    host = Listening(tmp_path, names_at={"b": ["10.0.0.2"]})
    with pytest.raises(RetryError):
        wait_for_addresses(["a", "b"], host, timeout_s=12)
    rest = [(["a"], left) for left in (10.0, 9.0, 7.5, 6.0, 4.5, 3.0, 1.5, 0.1)]
    assert [(["a", "b"], 10.0), *rest] == host.asked


@pytest.mark.parametrize("name", ["fake-host", "fake-host.job", "fake-host.job.ns.svc"])
@pytest.mark.parametrize("listed", [[], ["10.0.0.66"]])
def test_our_own_name(tmp_path, name, listed):
    """It leads to this machine, also where the name server does not know it, or still knows the pod before."""
    found, slept, _ = wait(tmp_path, [name, "b"], {"b": ["10.0.0.2"], name: listed, "fake-host": ["10.0.0.1"]})
    assert ([(name, "10.0.0.1"), ("b", "10.0.0.2")], 0) == (found, slept)


def test_our_own_name_on_a_machine_that_calls_itself_a_loopback(tmp_path):
    """Debian writes 127.0.1.1 into /etc/hosts, which is nobody's address to others: the name server's word counts."""
    names_at = {"fake-host": ["127.0.1.1"], "fake-host.job": [[], ["10.0.0.1"]]}
    found, slept, _ = wait(tmp_path, ["fake-host.job"], names_at)
    assert ([("fake-host.job", "10.0.0.1")], 0.5) == (found, slept)


def test_our_own_name_that_nobody_knows(tmp_path):
    """It is one name that is missing, by the name that was asked for."""
    with pytest.raises(RetryError, match=r"^1 of 1 hosts have no address after 0 s: fake-host\.job does not resolve"):
        wait(tmp_path, ["fake-host.job"], {}, timeout_s=0)


def test_names_that_share_our_first_word(tmp_path):
    """Which of them is ours cannot be told, so that both are asked for; the whole name decides."""
    names_at = {"fake-host.a": ["10.0.0.2"], "fake-host.b": ["10.0.0.3"], "fake-host": ["10.0.0.1"]}
    found, _, _ = wait(tmp_path, ["fake-host.a", "fake-host.b"], names_at)
    assert [("fake-host.a", "10.0.0.2"), ("fake-host.b", "10.0.0.3")] == found
    found, _, _ = wait(tmp_path, ["fake-host", "fake-host.b"], names_at)
    assert [("fake-host", "10.0.0.1"), ("fake-host.b", "10.0.0.3")] == found


class FullyNamed(FakeHost):
    """A pod with setHostnameAsFQDN."""

    def hostname(self):
        return "fake-host.job.ns.svc.cluster.local"


def test_our_own_name_where_the_host_name_is_a_whole_one(tmp_path):
    """Its first word is compared."""
    host = FullyNamed(tmp_path, names_at={"fake-host.job.ns.svc.cluster.local": ["10.0.0.1"]})
    assert {"fake-host.job": "10.0.0.1"} == wait_for_addresses(["fake-host.job"], host, timeout_s=0)
