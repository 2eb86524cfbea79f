import json

import pytest
import structlog

from preflight_checks.rendezvous_dns import rendezvous_dns
from trainer_agent import log
from trainer_agent.cgroup import read_limits
from trainer_agent.check import Context, Options, Outcome, Status
from trainer_agent.errors import Action
from trainer_agent.host import NameLookupError
from trainer_agent.testing import NO_DEVICES, FakeHost, run_check
from trainer_agent.topology import read_topology

NAME = "job-node-0-0.job"
TWO_NODES = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": NAME}


class SlowHost(FakeHost):
    """Each lookup takes the next of `seconds`, the last one for ever; `silent` means that the name server is."""

    def __init__(self, root, *, seconds=(0.0,), silent=False, **more):
        super().__init__(root, **more)
        self.seconds = list(seconds)
        self.silent = silent
        self.timeouts = []

    def resolve(self, name, *, timeout_s):
        self.timeouts.append(timeout_s)
        taken = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        self.clock += min(taken, timeout_s)
        if self.silent:
            raise NameLookupError(name, "the name server gave no answer", published=None)
        return super().resolve(name, timeout_s=timeout_s)


@pytest.fixture
def json_log():
    """A function that sends the log to the standard error of now."""
    yield lambda: log.configure({}, form="json")
    structlog.reset_defaults()


def found(outcome):
    return [(str(f.severity), f.code, f.message, f.action) for f in outcome.findings]


def run(host, *, timeout_s=60.0, environ=None):
    return run_check(
        rendezvous_dns, host, environ=environ or TWO_NODES, options=Options(rendezvous_timeout_s=timeout_s)
    )


def test_one_node_needs_no_name(tmp_path):
    skipped = run(FakeHost(tmp_path), environ={"PET_NNODES": "1", "PET_MASTER_ADDR": NAME})

    assert "one node: torchrun runs standalone, no name is needed" == skipped


def test_a_missing_address_is_another_checks_finding(tmp_path):
    skipped = run(FakeHost(tmp_path), environ={"PET_NNODES": "2"})

    assert "there is no name to look up: the check environment says why" == skipped


def test_a_name_that_goes_on_resolving_passes(tmp_path):
    host = SlowHost(tmp_path, seconds=[0.040, 0.001, 0.002, 0.003, 0.004], names_at={NAME: ["10.0.0.7"]})

    measured = {"lookups": 5, "lookup_median_ms": 3.0, "lookup_max_ms": 40.0}
    assert Outcome(f"{NAME} is 10.0.0.7", (), measured) == run(host)
    assert 1.0 == host.slept, "four lookups a quarter of a second apart"


def test_a_name_that_comes_late_passes(tmp_path):
    host = FakeHost(tmp_path, names_at={NAME: [[], [], [], ["10.0.0.7"]]})

    outcome = run(host)

    assert (Status.PASS, 8, 2.5) == (outcome.status, outcome.measurements["lookups"], host.slept)


def test_addresses_in_another_order_are_the_same_answer(tmp_path):
    host = FakeHost(tmp_path, names_at={NAME: [["10.0.0.7", "10.0.0.8"], ["10.0.0.8", "10.0.0.7"]]})

    assert [] == found(run(host))


@pytest.mark.parametrize(
    "later, said",
    [
        ([["10.0.0.7"], [], ["10.0.0.7"]], "10.0.0.7; 10.0.0.7; no answer; 10.0.0.7; 10.0.0.7"),
        ([["10.0.0.8"]], "10.0.0.7; 10.0.0.8; 10.0.0.8; 10.0.0.8; 10.0.0.8"),
    ],
)
def test_a_name_that_flaps_is_a_warning(tmp_path, later, said):
    outcome = run(FakeHost(tmp_path, names_at={NAME: [["10.0.0.7"], *later]}))

    message = f"{NAME} gave 5 answers that differ ({said}), wanted the same each time"
    assert [("warning", "name-flaps", message, Action.CONTINUE)] == found(outcome)


def test_a_name_that_never_comes_stops_the_job(tmp_path):
    host = FakeHost(tmp_path)

    outcome = run(host, timeout_s=60)

    message = f"PET_MASTER_ADDR: {NAME} does not resolve (Name or service not known), wanted an address within 60 s"
    assert [("error", "name-missing", message, Action.STOP)] == found(outcome)
    assert (60.0, 121) == (host.slept, outcome.measurements["lookups"])


def test_a_silent_name_server_asks_to_try_again(tmp_path):
    host = SlowHost(tmp_path, seconds=[10.0], silent=True)

    outcome = run(host, timeout_s=60)

    assert [("error", "name-server-failing", Action.RETRY)] == [(s, c, a) for s, c, _, a in found(outcome)]
    assert host.clock - 1_000_000 < 60 + 10, "the last lookup may take its time, no more"


def test_no_lookup_may_take_longer_than_the_wait_has_left(tmp_path):
    """Ten seconds at most, and two at least, so that the last one has a chance."""
    host = SlowHost(tmp_path, seconds=[4.0], silent=True)

    run(host, timeout_s=20)

    assert [10.0, 10.0, 10.0, 6.5, 2.0] == host.timeouts


def test_without_a_wait_there_is_one_lookup(tmp_path):
    outcome = run(SlowHost(tmp_path), timeout_s=0)

    assert (Status.FAIL, 1) == (outcome.status, outcome.measurements["lookups"])


def test_the_wait_says_every_ten_seconds_what_it_waits_for(tmp_path, capsys, json_log):
    json_log()
    run(FakeHost(tmp_path), timeout_s=35)

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    expected = [
        {
            "event": "waiting for rank 0's name",
            "name": NAME,
            "waited_s": waited,
            "timeout_s": 35,
            "last": f"{NAME} does not resolve (Name or service not known)",
            "level": "info",
        }
        for waited in (10, 20, 30)
    ]
    assert expected == [{k: v for k, v in line.items() if k != "timestamp"} for line in lines]


@pytest.mark.parametrize("timeout_s", [0, 1, 60, 600])
@pytest.mark.parametrize("silent", [True, False])
def test_the_checks_own_deadline_leaves_room_for_all_of_its_waits(tmp_path, timeout_s, silent):
    """The slowest lookups that the limits allow end before the check would be killed."""
    names = {} if silent else {NAME: [["10.0.0.7"], []]}
    host = SlowHost(tmp_path, seconds=[30.0], silent=silent, names_at=names)
    topology = read_topology(TWO_NODES, hostname="a-host")
    options = Options(rendezvous_timeout_s=timeout_s)
    context = Context(TWO_NODES, topology, read_limits(host), NO_DEVICES, host, options)

    began = host.clock
    rendezvous_dns.function(context)

    assert host.clock - began < rendezvous_dns.deadline_s(context)
    assert rendezvous_dns.waits_for_nodes, "the budget of a profile does not cut the wait"
