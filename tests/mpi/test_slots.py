"""Ranks on each host: the devices of the launcher's own pod where it takes part, else what is written."""

from functools import partial

import pytest

from trainer_agent.accelerators import Accelerators
from trainer_agent.errors import FatalError
from trainer_agent.hostfile import Entry, Hostfile
from trainer_agent.mpi.slots import decide_slots, differs, own_entry
from trainer_agent.nproc import Decision, NprocMismatchError, Policy, decide

HOSTS = Hostfile((Entry("n-0.job", 4), Entry("launcher.job", 4)))
MIXED = Hostfile((Entry("n-0.job", 8), Entry("launcher.job", 4)))
EIGHT = Accelerators("nvidia", 8, "8 by NVML")
TWO = Accelerators("nvidia", 2, "2 by NVML")
NONE = Accelerators("none", 0, "0 device nodes")
INTEL = Accelerators("intel", 4, "4 render nodes")


def never():
    raise AssertionError("nobody may look for devices")


def slots(asked=None, *, hosts=HOSTS, hostname="launcher", found=NONE, find=None, **settings):
    settings = {"cpus": 16, "policy": Policy.FIX, "allow_cpu": False, "omp_set": True, **settings}
    known = partial(decide, **settings)
    return decide_slots(hosts, hostname=hostname, asked=asked, find=find or (lambda: found), decide=known)


@pytest.mark.parametrize("hosts", [HOSTS, MIXED])
def test_a_launcher_that_is_no_host_counts_no_devices(hosts):
    """It may have none, or others: the hostfile counts."""
    given = max(entry.slots for entry in hosts.entries)
    reason = f"{given} on each host, as the hostfile says; this launcher is none of them"
    assert Decision(given, reason) == slots(hosts=hosts, hostname="elsewhere", find=never)
    assert Decision(2, "2 on each host, as --nproc says", changed=True) == slots(2, hostname="elsewhere", find=never)


@pytest.mark.parametrize("asked", ["gpu", "cpu", "auto"])
def test_a_launcher_that_is_no_host_cannot_count(asked):
    """What is asked for is elsewhere; the message says what to do."""
    with pytest.raises(FatalError) as refused:
        slots(asked, hostname="elsewhere", find=never)
    message = f"--nproc='{asked}' asks for the devices of the hosts, and this launcher is none of them"
    hint = "give a number, or set runLauncherAsNode: true in the runtime"
    assert ("nproc-not-known", message, hint) == (refused.value.code, refused.value.message, refused.value.hint)


def test_no_devices():
    """CPUs are what the hostfile says they are."""
    assert Decision(4, "4 on each host, as the hostfile says") == slots()
    assert Decision(8, "8 on each host, as the hostfile says") == slots(hosts=MIXED)


def test_more_slots_than_devices():
    """All hosts have what the launcher has."""
    reason = "2 processes, not slots=4, because there are no more devices here (2 by NVML)"
    assert Decision(2, reason, changed=True, warning=True, omp_threads=8) == slots(found=TWO, omp_set=False)


@pytest.mark.parametrize("hosts", [HOSTS, MIXED])
def test_slots_that_fit_are_left_as_they_are(hosts):
    """Also where hosts differ: nobody has asked for all of them to be alike."""
    found = slots(hosts=hosts, found=Accelerators("nvidia", 4, "4 by NVML"))
    assert Decision(4, "4 processes, one for each device (4 by NVML)") == found


def test_idle_devices_are_told():
    """Fewer slots than devices are the user's choice, with a warning."""
    found = slots(hosts=MIXED, found=EIGHT)
    assert (4, False, True) == (found.value, found.changed, found.warning)


@pytest.mark.parametrize("asked, value, changed", [("gpu", 8, True), (4, 4, False), (2, 2, True)])
def test_asked_by_option(asked, value, changed):
    """--nproc wins over the hostfile, on all hosts."""
    found = slots(asked, found=EIGHT)
    assert (value, changed) == (found.value, found.changed)


def test_asked_where_hosts_differ():
    """A number that one of them has already is still new to the other."""
    assert slots(4, hosts=MIXED, found=EIGHT).changed


def test_strict():
    """Under strict nobody decides for the user."""
    with pytest.raises(NprocMismatchError, match="slots=4"):
        slots(found=TWO, policy=Policy.STRICT)


def test_devices_that_only_torch_can_count():
    """MPI needs a number, so the hostfile's is taken."""
    found = slots("gpu", found=INTEL)
    assert (4, False) == (found.value, found.changed)
    assert found.reason.startswith("4 on each host, as the hostfile says: ")


@pytest.mark.parametrize(
    "hostname, name", [("n-0", "n-0.job"), ("n-0.job.svc", "n-0.job"), ("n-1", None), ("", None), ("N-0", None)]
)
def test_own_entry(hostname, name):
    """A pod knows its own name, with or without a domain."""
    entry = own_entry(HOSTS, hostname)
    assert name == (entry.name if entry else None)


def test_differs():
    """Whether any host has another number."""
    assert (False, True) == (differs(HOSTS, 4), differs(MIXED, 4))
