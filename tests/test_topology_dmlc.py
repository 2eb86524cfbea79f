"""Topology: what the xgboost runtime of Kubeflow Trainer injects, and its contradictions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.env import Setting
from trainer_agent.errors import Finding
from trainer_agent.topology import DMLC_NAMES, Topology, read_topology

DMLC = {
    "DMLC_NUM_WORKER": "3",
    "DMLC_TASK_ID": "2",
    "DMLC_TRACKER_URI": "job-node-0-0.job",
    "DMLC_TRACKER_PORT": "29500",
}


def read(environ):
    return read_topology(environ, hostname="box")


def test_what_trainer_injects():
    """The four variables of the xgboost plugin; how many processes a node has is for its devices to say."""
    expected = Topology(
        runtime="xgboost",
        min_nodes=3,
        max_nodes=3,
        node_rank=2,
        nproc=None,
        master_addr="job-node-0-0.job",
        master_port=29500,
        rdzv_backend="static",
        hostname="box",
        settings=(
            Setting(
                "DMLC_NUM_WORKER", "3", "environment", "workers of the whole job: one for each node, or for each GPU"
            ),
            Setting("DMLC_TASK_ID", "2", "environment", "this node's rank"),
            Setting("DMLC_TRACKER_URI", "job-node-0-0.job", "environment", "where worker 0 runs the tracker"),
            Setting("DMLC_TRACKER_PORT", "29500", "environment", "port of the tracker"),
        ),
    )
    assert expected == read(DMLC)


def test_names_of_the_variables_for_messages():
    """Whoever complains about the tracker's address or port names its variable."""
    found = read(DMLC)
    assert ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT") == (found.master_variable, found.port_variable)


@pytest.mark.parametrize(
    "environ, runtime",
    [
        ({"DMLC_NUM_WORKER": "4", "DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "scheduler"}, "plain"),
        ({"DMLC_TASK_ID": "0"}, "xgboost"),
        ({"DMLC_TRACKER_PORT": "1"}, "xgboost"),
        ({**DMLC, "PET_NNODES": "1"}, "torch"),
        ({**DMLC, "JAX_NUM_PROCESSES": "1"}, "jax"),
    ],
)
def test_which_jobs_are_xgboosts(environ, runtime):
    """Jobs with parameter servers share a name with them, and torch's own variables come first."""
    assert runtime == read(environ).runtime


def test_one_worker_needs_no_name():
    """It is told nothing but its number, and waits for nobody."""
    found = read({"DMLC_TASK_ID": "0"})
    assert (True, "", 29500, ()) == (found.single_node, found.master_addr, found.master_port, found.findings)


def test_an_ipv6_address():
    """Brackets belong to the notation, not to the address."""
    assert "fd00::1" == read({**DMLC, "DMLC_TRACKER_URI": "[fd00::1]"}).master_addr


@pytest.mark.parametrize("value", ["", " ", "[]", None])
def test_a_tracker_without_an_address(value):
    """Several workers need a place to meet."""
    environ = {n: v for n, v in {**DMLC, "DMLC_TRACKER_URI": value}.items() if v is not None}
    message = "DMLC_TRACKER_URI is empty although DMLC_NUM_WORKER=3"
    hint = "set it to the name of the pod with task 0, as the xgboost runtime of Trainer does"
    assert (Finding("master-addr-missing", message, hint=hint),) == read(environ).findings


@pytest.mark.parametrize("number, task, valid", [("3", "3", "0..2"), ("1", "1", "0"), ("2", "99", "0..1")])
def test_a_task_beyond_the_workers(number, task, valid):
    """Even with one worker on each node there would be no such node."""
    message = f"DMLC_TASK_ID={task} is outside {valid} (DMLC_NUM_WORKER={number})"
    hint = f"set DMLC_NUM_WORKER to the number of pods, or DMLC_TASK_ID to one of {valid}"
    found = read({**DMLC, "DMLC_NUM_WORKER": number, "DMLC_TASK_ID": task}).findings
    assert (Finding("rank-outside-nnodes", message, hint=hint),) == found


@pytest.mark.parametrize("name, default", [("DMLC_NUM_WORKER", 1), ("DMLC_TASK_ID", 0), ("DMLC_TRACKER_PORT", 29500)])
@pytest.mark.parametrize("value", ["", "two", "1.0", "²", "9" * 5000])
def test_not_an_integer(name, default, value):
    """What is not written in ASCII digits is no number."""
    message, hint = f"{name}={value!r} is not a whole number", f"set {name} to a number such as {default}"
    found = read({**DMLC, "DMLC_TASK_ID": "0", name: value}).findings
    assert (Finding("not-an-integer", message, hint=hint),) == found


@pytest.mark.parametrize(
    "name, value, wanted",
    [
        ("DMLC_NUM_WORKER", "0", "1 or more"),
        ("DMLC_NUM_WORKER", "-2", "1 or more"),
        ("DMLC_TASK_ID", "-1", "0 or more"),
        ("DMLC_TRACKER_PORT", "0", "1..65535"),
        ("DMLC_TRACKER_PORT", "65536", "1..65535"),
    ],
)
def test_out_of_range(name, value, wanted):
    """Numbers that exist but cannot be meant name the range."""
    message, hint = f"{name}={value} is outside {wanted}", f"set {name} to a number in {wanted}"
    found = read({**DMLC, "DMLC_TASK_ID": "0", name: value}).findings
    assert (Finding("out-of-range", message, hint=hint),) == found


@given(st.dictionaries(st.sampled_from((*DMLC_NAMES, "DMLC_NUM_WORKER")), st.text(max_size=30)))
def test_never_raises(environ):
    """Whatever the variables hold, reading them ends in a topology whose port exists."""
    assert 1 <= read(environ).master_port <= 65535
