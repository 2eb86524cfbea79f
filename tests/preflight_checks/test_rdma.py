"""rdma: every healthy machine passes, and each fault alone is named with its device, port and action."""

from dataclasses import replace

import pytest
from rdma_faults import DOWN, FAULTS, NAMES, OPEN, PROPRIETARY, rises
from rdma_machines import CX7_ROCE, HDR, HEALTHY, RdmaHost, efa, lay_out, ndr, roce, with_mezzanine

from preflight_checks.rdma import rdma
from trainer_agent.accelerators import Accelerators
from trainer_agent.check import Options, Outcome, Status
from trainer_agent.testing import NO_DEVICES, FakeHost, run_check

pytestmark = pytest.mark.lab  # lays out 38,000 files

GPUS = Accelerators("nvidia", 8, "NVML: 8 GPUs")


def host_of(root, nics, *, changes=(), later=None, files=()):
    changed = [replace(nic, **(dict(changes).get(n) or {})) for n, nic in enumerate(nics)]
    there = [nic for n, nic in enumerate(changed) if dict(changes).get(n, {}) is not None]
    host = lay_out(RdmaHost(root, later=later), there)
    for path, text in dict(files).items():
        host.put(path, text)
    return host


def look(root, nics, *, environ=None, accelerators=GPUS, profile="standard", **how):
    host = host_of(root, nics, **how)
    return run_check(rdma, host, environ=environ, accelerators=accelerators, nproc=8, options=Options(profile=profile))


def rows(outcome):
    """Return what was found above info."""
    return [
        (
            str(f.severity),
            f.code,
            str(f.action),
            [(n["device"], n["port"]) for n in f.evidence.get("nics", [])],
            f.message,
        )
        for f in outcome.findings
        if str(f.severity) != "info"
    ]


def infos(outcome):
    return [(f.code, [n["device"] for n in f.evidence["nics"]]) for f in outcome.findings if str(f.severity) == "info"]


@pytest.mark.parametrize("accelerators", [GPUS, NO_DEVICES], ids=["gpus", "none"])
@pytest.mark.parametrize("profile", ["quick", "standard"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_passes(tmp_path, name, profile, accelerators):
    outcome = look(tmp_path, HEALTHY[name](), profile=profile, accelerators=accelerators)

    assert (Status.PASS, []) == (outcome.status, rows(outcome))


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_alone_is_found_and_nothing_else(tmp_path, name):
    fault = FAULTS[name]
    how = {"changes": fault.changes, "later": fault.later, "files": fault.files}

    assert [fault.found] == rows(look(tmp_path, fault.machine(), environ=fault.environ, **how))


def test_every_rule_has_its_fault():
    """But for the one that only informs."""
    assert {rule.code for rule in rdma.rules} - {"rdma-port-unused"} == {f.found[1] for f in FAULTS.values()}


def test_without_a_device_there_is_nothing_to_look_at(tmp_path):
    assert "there is no RDMA device: /sys/class/infiniband is empty" == run_check(rdma, FakeHost(tmp_path))


def test_what_is_reported_of_a_port(tmp_path):
    outcome = look(tmp_path, roce()[:2])

    assert "2 of 2 ports that can be used are active: 2 x Ethernet 400 Gb/sec (4X NDR)" == outcome.message
    assert (2, 2, []) == tuple(outcome.measurements[name] for name in ("active_ports", "used_ports", "excluded"))
    expected = {
        "device": "mlx5_1",
        "port": 1,
        "used": True,
        "state": "ACTIVE",
        "phys_state": "LinkUp",
        "link_layer": "Ethernet",
        "rate_gbps": 400.0,
        "expected_rate_gbps": 400.0,
        "lid": "0x0",
        "gids": 3,
        "gid_types": ["IB/RoCE v1", "RoCE v2"],
        "mtu_bytes": 9000,
        "board": CX7_ROCE,
        "pci": "0000:11:00.0",
        "firmware": "28.39.2048",
        "node_guid": "5aa2:e103:002a:0001",
        "numa_node": 0,
    }
    assert expected == outcome.measurements["ports"][1]


@pytest.mark.parametrize("state", ["INIT", "ARMED", "DOWN"])
def test_a_port_that_comes_up_while_we_wait_is_no_fault(tmp_path, state):
    """Links train for a while after a reboot."""
    up = "/sys/class/infiniband/mlx5_3/ports/1/state"

    outcome = look(tmp_path, ndr(), changes={3: {"state": state}}, later=lambda host: host.put(up, "4: ACTIVE\n"))

    assert (Status.PASS, ()) == (outcome.status, outcome.findings)


@pytest.mark.parametrize("profile, waited", [("quick", 5), ("standard", 10)])
def test_the_wait_has_an_end_and_a_healthy_machine_none(tmp_path, profile, waited):
    broken = host_of(tmp_path / "broken", ndr(), changes={3: DOWN})
    sound = host_of(tmp_path / "sound", with_mezzanine())
    for host in (broken, sound):
        run_check(rdma, host, accelerators=GPUS, options=Options(profile=profile))

    pause = 0.3 if profile == "quick" else 1
    assert (waited + pause, pause) == (pytest.approx(broken.slept), pytest.approx(sound.slept))
    assert rdma.deadline_s(None) > 10 + 1


def test_ports_that_nobody_uses_only_inform(tmp_path):
    expected = [("rdma-port-unused", ["mlx5_8", "mlx5_9", "mlx5_10", "mlx5_11"])]

    assert expected == infos(look(tmp_path, with_mezzanine()))


def test_a_port_that_is_switched_off_is_meant_to_be(tmp_path):
    """Its net device was never set up: an uncabled port of a card, not a broken cable."""
    outcome = look(tmp_path, roce(), changes={7: {"state": "DOWN", "operstate": "down", "flags": "0x1002"}})

    assert [] == rows(outcome)


@pytest.mark.parametrize(
    "nics, down, expected",
    [
        (ndr()[:3], 1, [("warning", "rdma-port-down")]),
        (ndr()[:4], 1, [("error", "rdma-port-down")]),
        (ndr(), 3, [("error", "rdma-port-down")]),
        (ndr(), 4, [("warning", "rdma-port-down")]),
        (ndr(), 5, []),
        (roce()[:3], 1, []),  # Ethernet has ports without a cable
        (roce()[:8], 3, [("error", "rdma-port-down")]),
        (roce()[:8], 4, []),
    ],
)
def test_how_many_cards_make_a_yardstick(tmp_path, nics, down, expected):
    """Three, and more than half of all."""
    outcome = look(tmp_path, nics, changes=dict.fromkeys(range(down), DOWN))

    assert expected == [row[:2] for row in rows(outcome)]


@pytest.mark.parametrize("count, severity", [(2, None), (3, "warning"), (4, "error")])
def test_how_many_ports_tell_that_one_is_slow(tmp_path, count, severity):
    outcome = look(tmp_path, ndr()[:count], changes={0: {"rate": HDR}})

    assert ([(severity, "rdma-rate-low")] if severity else []) == [row[:2] for row in rows(outcome)]


def test_infiniband_carries_data_whatever_its_net_device_says(tmp_path):
    """Without IP over InfiniBand its net devices stay switched off, and a broken cable is still one."""
    nics = [replace(nic, net=f"ibp{n}s0", operstate="down", flags="0x1002") for n, nic in enumerate(ndr())]

    assert [] == rows(look(tmp_path / "sound", nics))
    assert ["rdma-port-down"] == [row[1] for row in rows(look(tmp_path / "broken", nics, changes={3: DOWN}))]


def test_a_dead_subnet_manager_beside_ethernet_that_works(tmp_path):
    nics = [replace(nic, state="INIT") for nic in ndr()[:2]] + roce()[8:10]
    nics = [replace(nic, pci=f"0000:{n + 1:02x}:00.0") for n, nic in enumerate(nics)]

    assert [("error", "rdma-port-not-ready", "retry")] == [row[:3] for row in rows(look(tmp_path, nics))]


def test_virtual_functions_that_wait_for_a_pod_only_inform(tmp_path):
    nics = [replace(nic, virtual=True) for nic in ndr()]

    assert [] == rows(look(tmp_path, nics, changes=dict.fromkeys(range(3), DOWN)))


def test_all_ports_down_only_informs_where_nobody_needs_them(tmp_path):
    """One machine alone, or none of the accelerators: TCP does."""
    nics = [replace(nic, state="DOWN", operstate="down") for nic in roce()]
    several = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "a"}

    assert [] == rows(look(tmp_path / "alone", nics))
    assert [] == rows(look(tmp_path / "cpu", nics, environ=several, accelerators=NO_DEVICES))
    assert ["rdma-none-active"] == [row[1] for row in rows(look(tmp_path / "job", nics, environ=several))]


@pytest.mark.parametrize("setting", ["^mlx5_3", "^=mlx5_3:1", "mlx5_0,mlx5_1,mlx5_2", "=mlx5_4:1"])
def test_what_nccl_does_not_use_is_not_judged(tmp_path, setting):
    """Nor are its counters read: opening these would hang."""
    outcome = look(tmp_path, ndr(), changes={3: {"state": "DOWN", "forbidden": True}}, environ={"NCCL_IB_HCA": setting})

    assert (Status.PASS, ()) == (outcome.status, outcome.findings)


@pytest.mark.parametrize("setting", ["^mlx5_3", "mlx5_0", "=mlx5_0"])
def test_counters_of_active_ports_that_nccl_does_not_use_are_not_read(tmp_path, setting):
    outcome = look(tmp_path, ndr(), changes={3: {"forbidden": True}}, environ={"NCCL_IB_HCA": setting})

    assert Status.PASS is outcome.status


def test_a_prefix_takes_all_that_begin_with_it(tmp_path):
    """mlx5_1 means mlx5_10 too, as NCCL reads it, and then neither is named for sure."""
    nics = [replace(nic, name=name) for nic, name in zip(ndr()[:3], ("mlx5_0", "mlx5_1", "mlx5_10"), strict=True)]

    outcome = look(tmp_path, nics, environ={"NCCL_IB_HCA": "mlx5_1"})

    assert ["mlx5_1", "mlx5_10"] == [port["device"] for port in outcome.measurements["ports"] if port["used"]]


def test_a_device_can_be_left_out(tmp_path):
    """It is not looked at at all."""
    outcome = look(
        tmp_path, ndr(), changes={3: {"state": "DOWN"}}, environ={"TRAINER_AGENT_RDMA_EXCLUDE": "mlx5_3, mlx5_77"}
    )

    assert (Status.PASS, ["mlx5_3"]) == (outcome.status, outcome.measurements["excluded"])
    assert 7 == len(outcome.measurements["ports"])


def test_a_device_left_out_is_not_missed(tmp_path):
    environ = {"NCCL_IB_HCA": NAMES, "TRAINER_AGENT_RDMA_EXCLUDE": "mlx5_3"}

    assert [] == rows(look(tmp_path, ndr(), environ=environ))


def test_devices_of_other_containers_are_not_judged(tmp_path):
    """All pods see all devices in /sys; the nodes in /dev are those that this one was given."""
    changes = {n: {"verbs": False} for n in range(1, 8)} | {3: {"verbs": False, "state": "DOWN"}}

    outcome = look(tmp_path, ndr(), changes=changes)

    assert (Status.PASS, 1) == (outcome.status, outcome.measurements["used_ports"])


def test_without_accelerators_missing_nodes_only_inform(tmp_path):
    outcome = look(tmp_path, ndr(), changes={n: {"verbs": False} for n in range(8)}, accelerators=NO_DEVICES)

    assert [("info", "rdma-nodes-missing")] == [(str(f.severity), f.code) for f in outcome.findings]


@pytest.mark.parametrize("nics, used", [(ndr, 0), (efa, 32)], ids=["nccl", "efa"])
def test_switched_off_in_nccl_leaves_only_efa_which_has_a_plugin_of_its_own(tmp_path, nics, used):
    outcome = look(tmp_path, nics(), environ={"NCCL_IB_DISABLE": "1"})

    assert (Status.PASS, used) == (outcome.status, outcome.measurements["used_ports"])


@pytest.mark.parametrize(
    "text, expected",
    [("up\n", []), ("unknown\n", []), ("down\n", ["rdma-port-down"]), ("lowerlayerdown\n", ["rdma-port-down"])],
)
def test_the_net_device_tells_the_state_of_efa(tmp_path, text, expected):
    state = "/sys/class/infiniband/rdmap84s0/device/net/efa5/operstate"
    outcome = look(tmp_path, efa(), changes={5: {"net": "efa5"}}, files={state: text})

    assert expected == [row[1] for row in rows(outcome)]


def test_a_device_that_refuses_a_counter_is_left_alone(tmp_path):
    """Each refusal is a line in the kernel's log, so that the first is the last; the others are still read."""
    nics = [replace(ndr()[0], counters={"symbol_error": 7}, refused=True), ndr()[1]]
    host = host_of(tmp_path, nics, later=rises("mlx5_1", "symbol_error", 9))
    asked = []
    host.read = lambda path, read=host.read: (asked.append(str(path)), read(path))[1]

    outcome = run_check(rdma, host, accelerators=GPUS)

    assert [("mlx5_1", 1)] == rows(outcome)[0][3]
    assert ["symbol_error"] == [path.rpartition("/")[2] for path in asked if "mlx5_0/ports/1/counters" in path]


@pytest.mark.parametrize(
    "files, found",
    [
        ({"/proc/driver/nvidia/version": OPEN}, []),
        ({"/proc/driver/nvidia/version": PROPRIETARY, "/sys/module/nvidia_peermem/version": ""}, []),
        ({"/proc/driver/nvidia/version": PROPRIETARY, "/sys/module/nv_peer_mem/version": ""}, []),
    ],
    ids=["dma-buf", "nvidia_peermem", "nv_peer_mem"],
)
def test_what_lets_the_network_reach_gpu_memory(tmp_path, files, found):
    assert found == rows(look(tmp_path, ndr(), files=files))


def test_gpudirect_is_of_no_interest_without_gpus_or_with_efa(tmp_path):
    files = {"/proc/driver/nvidia/version": PROPRIETARY}

    assert [] == rows(look(tmp_path / "cpu", ndr(), files=files, accelerators=NO_DEVICES))
    assert [] == rows(look(tmp_path / "efa", efa(), files=files))


def test_a_sysfs_that_says_nothing_breaks_nothing(tmp_path):
    host = FakeHost(tmp_path)
    host.put("/sys/class/infiniband/rxe0/ports/1/state", "nonsense\n")
    host.put("/sys/class/infiniband/rxe0/ports/x/state", "4: ACTIVE\n")
    host.put("/sys/class/infiniband/rxe1/ports/1/state", "4: ACTIVE\n")

    outcome = run_check(rdma, host)

    assert isinstance(outcome, Outcome)
    assert [("rxe0", "not readable", None), ("rxe1", "ACTIVE", None)] == [
        (port["device"], port["state"], port["rate_gbps"]) for port in outcome.measurements["ports"]
    ]
