"""What an XID says of a GPU."""

import pytest

from preflight_checks import _xids
from preflight_checks._gpus import Gpu

GPUS = {3: Gpu(3, uuid="GPU-3")}
# As NVIDIA's catalogue has them: what it says to ignore, and what informs.
IGNORED = (14, 37, 38, 44, 66, 67, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161)
INFORMING = (154, 162, 163, 164, 165)


def judged(*xids, gpus=GPUS):
    """Return severity and code of what is made of XIDs of GPU 3."""
    return [(str(f.severity), f.code) for f in _xids.judge([(3, xid) for xid in xids], gpus)]


@pytest.mark.parametrize(
    "xid", [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158, 999]
)
def test_a_fault_of_the_gpu_is_an_error(xid):
    """Those that EKS replaces a node for; and one that nobody knows."""
    assert [("error", "gpu-xid")] == judged(xid)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 92])
def test_what_applications_cause_is_a_warning(xid):
    assert [("warning", "gpu-xid-application")] == judged(xid)


@pytest.mark.parametrize("working, code", [(False, "gpu-xid-application"), (True, "gpu-xid")])
def test_a_context_switch_that_takes_too_long_is_a_fault_of_the_gpu_while_we_work(working, code):
    (finding,) = _xids.judge([(3, 109)], GPUS, working=working)

    assert code == finding.code


@pytest.mark.parametrize("xid", IGNORED + INFORMING)
def test_what_nvidia_says_to_ignore_only_informs(xid):
    """A superchip's link to its CPU that corrected an error (121) is no reason to leave the node."""
    assert [("info", "gpu-xid-harmless")] == judged(xid)


@pytest.mark.parametrize("xid", range(144, 151))
def test_an_error_of_nvlink_that_may_be_fatal_is_a_warning(xid):
    """The number does not tell."""
    assert [("warning", "gpu-xid-nvlink")] == judged(xid)


def test_a_gpu_that_others_use_is_nobodys_concern_here():
    """The driver tells root of all GPUs of a node."""
    assert [] == _xids.judge([(5, 79)], GPUS)


def test_a_gpu_that_nobody_knows_may_be_one_of_these():
    (finding,) = _xids.judge([(-1, 79)], GPUS)

    assert ("gpu-xid", "an unknown GPU: XID 79 while this check ran, wanted none") == (finding.code, finding.message)


def test_each_number_is_of_one_kind():
    numbers = [number for kind, _ in _xids.KINDS for number in kind]

    assert len(numbers) == len(set(numbers))
