"""What is wrong with a GPU itself; tests/preflight_checks/test_gpu_faults.py has one of each fault."""

import time

import pynvml
import pytest
from nvml_checks import context_of, found, only, run_on
from nvml_faults import FAULTS, ecc
from nvml_machines import DRAM, bus_id, h100_sxm, machine, uuid
from nvml_models import A100_SXM, B200_SXM, L4

from preflight_checks._gpus import NvmlHungError, read_gpus
from preflight_checks.gpu_health import gpu_health
from trainer_agent.catalogue import Listed
from trainer_agent.check import Status
from trainer_agent.errors import Action
from trainer_agent.process import adopt_orphans, descendants
from trainer_agent.runner import run_checks
from trainer_agent.testing import FakeHost, run_check

pytestmark = pytest.mark.lab

SRAM = 7


def health_on(standin, scenario, root, **how):
    """Return the outcome on a machine."""
    return run_on(standin, scenario, [gpu_health], root, **how)["gpu-health"]


def codes(outcome):
    """Return the codes of the findings."""
    return [f.code for f in outcome.findings]


def test_without_the_library_there_is_nothing_to_look_at(tmp_path):
    assert run_check(gpu_health, FakeHost(tmp_path)).startswith("NVML is not here: ")


def test_without_a_driver_it_leaves_the_word_to_gpu_count(nvml_standin, tmp_path):
    outcome = health_on(nvml_standin, FAULTS["not-loaded"](h100_sxm(), 0), tmp_path)

    assert "NVML does not start: Driver Not Loaded; gpu-count says more" == outcome


def test_without_a_gpu_there_is_nothing_to_look_at(nvml_standin, tmp_path):
    assert "NVML lists no GPU" == health_on(nvml_standin, h100_sxm(0), tmp_path)


def test_a_gpu_that_goes_while_we_ask_keeps_its_name(nvml_standin, tmp_path):
    """It is known by what it answered before."""
    outcome = health_on(nvml_standin, h100_sxm().loses(3, from_call=20), tmp_path)

    message = f"GPU 3 ({uuid(3)}, {bus_id(3)}): NVML says `GPU is lost`, wanted answers"
    assert ("gpu-lost", message) == (only(outcome).code, only(outcome).message)
    assert "7 x NVIDIA H100 80GB HBM3: 7 of 8 GPUs answer" == outcome.message


@pytest.mark.parametrize(
    "uuid_line, uuid_found", [(f"GPU UUID: \t {uuid(3)}\n", uuid(3)), ("GPU UUID: \t GPU-????\n", "")]
)
def test_a_gpu_that_never_answered_is_found_by_elimination(nvml_standin, tmp_path, uuid_line, uuid_found):
    """The driver's files name all, NVML names the others."""
    host = FakeHost(tmp_path)
    for index in range(8):
        text = f"Model: \t H100\n{uuid_line if index == 3 else ''}Device Minor: \t {index}\n"
        host.put(f"/proc/driver/nvidia/gpus/{bus_id(index)[4:].lower()}/information", text)
    outcome = health_on(nvml_standin, FAULTS["lost"](h100_sxm(), 3), tmp_path, host=host)

    assert [{"index": 3, "uuid": uuid_found, "pci": "0000:56:00.0"}] == only(outcome).evidence["gpus"]


@pytest.mark.parametrize("lost", [(3,), (3, 5)])
def test_a_gpu_that_nobody_names_has_its_index(nvml_standin, tmp_path, lost):
    """No files, or two GPUs that do not answer."""
    scenario = h100_sxm()
    host = FakeHost(tmp_path)
    for index in lost:
        scenario = scenario.loses(index)
        if len(lost) > 1:
            host.put(f"/proc/driver/nvidia/gpus/{bus_id(index)[4:]}/information")
    outcome = health_on(nvml_standin, scenario, tmp_path, host=host)

    assert [{"index": n, "uuid": "", "pci": ""} for n in lost] == only(outcome).evidence["gpus"]


def test_the_same_of_several_gpus_is_one_finding(nvml_standin, tmp_path):
    """A node without nvidia-persistenced is not eight faults."""
    scenario = h100_sxm(3).says("nvmlDeviceGetPersistenceMode", 0)

    assert [("gpu-health", "info", "persistence-off", [0, 1, 2])] == found(
        {"gpu-health": health_on(nvml_standin, scenario, tmp_path)}
    )


def test_pages_that_older_gpus_retire(nvml_standin, tmp_path):
    """Sixty are a case for a new board."""
    pages = tuple(0x1000 * n for n in range(60))
    scenario = (
        machine(A100_SXM, 1)
        .says("nvmlDeviceGetRetiredPages", pages[:40], of=0)
        .says("nvmlDeviceGetRetiredPages", pages[40:], of=1)
        .says("nvmlDeviceGetRetiredPagesPendingStatus", 1)
    )
    outcome = health_on(nvml_standin, scenario, tmp_path)

    assert ["pages-retired-many", "page-retirement-pending"] == codes(outcome)
    assert outcome.findings[0].message.endswith(": 60 pages of memory are retired, wanted fewer than 60")


def older(made):
    """Return a machine whose GPUs retire pages, and have no rows to remap."""
    made = made.fails("nvmlDeviceGetRemappedRows", pynvml.NVML_ERROR_NOT_SUPPORTED)
    made = made.fails("nvmlDeviceGetRowRemapperHistogram", pynvml.NVML_ERROR_NOT_SUPPORTED)
    made = made.says("nvmlDeviceGetRetiredPages", (), of=0).says("nvmlDeviceGetRetiredPages", (0x1000,), of=1)
    return made.says("nvmlDeviceGetRetiredPagesPendingStatus", 1)


@pytest.mark.parametrize("rising", [False, True])
def test_a_double_bit_error_that_waits_keeps_all_programs_out(nvml_standin, tmp_path, rising):
    """Before Ampere nothing is set aside while the driver runs: CUDA gives no context."""
    outcome = health_on(nvml_standin, ecc(DRAM, 1, rising=rising)(older(machine(A100_SXM, 1)), 0), tmp_path)

    text = "1 uncorrected errors of DRAM wait for the page to be retired, wanted 0"
    messages = {f.code: f.message.partition("): ")[2] for f in outcome.findings}
    assert ("fail", text) == (str(outcome.status), messages["page-retirement-blocks"])
    assert set() == messages.keys() & {"ecc-dram-uncorrected", "ecc-dram-rising"}


def test_a_page_that_waits_for_corrected_errors_keeps_nobody_out(nvml_standin, tmp_path):
    assert ["page-retirement-pending"] == codes(health_on(nvml_standin, older(machine(A100_SXM, 1)), tmp_path))


def test_errors_that_wait_for_nothing_are_no_reason_to_leave(nvml_standin, tmp_path):
    """Their page may be retired by now."""
    made = older(machine(A100_SXM, 1)).says("nvmlDeviceGetRetiredPagesPendingStatus", 0)

    assert ["ecc-dram-uncorrected"] == codes(health_on(nvml_standin, ecc(DRAM, 1)(made, 0), tmp_path))


@pytest.mark.parametrize("count, expected", [(4, []), (5, ["ecc-sram-threshold"])])
def test_errors_of_sram_in_a_life_count_where_the_driver_has_no_threshold(nvml_standin, tmp_path, count, expected):
    scenario = h100_sxm(1).fails("nvmlDeviceGetSramEccErrorStatus", pynvml.NVML_ERROR_NO_PERMISSION)
    scenario = scenario.says("nvmlDeviceGetMemoryErrorCounter", count, of=(1, 1, SRAM))

    assert expected == codes(health_on(nvml_standin, scenario, tmp_path))


def test_errors_that_wait_to_be_remapped_are_said_once(nvml_standin, tmp_path):
    scenario = FAULTS["dram-uncorrected"](FAULTS["remap-pending"](h100_sxm(), 3), 3)

    assert ["row-remap-pending"] == codes(health_on(nvml_standin, scenario, tmp_path))


@pytest.mark.parametrize(
    "model, errors, severity",
    [(L4, 1, "error"), (L4, 0, "warning"), (A100_SXM, 1, "warning"), (B200_SXM, 1, "warning")],
)
def test_a_row_that_waits_harms_where_its_page_stays_in_use(nvml_standin, tmp_path, model, errors, severity):
    """On L4 and their like nothing takes it offline; without an uncorrected error nothing has to."""
    scenario = ecc(DRAM, errors)(FAULTS["remap-pending"](machine(model, 1), 0), 0)
    finding = only(health_on(nvml_standin, scenario, tmp_path))

    action = Action.RESCHEDULE if severity == "error" else Action.CONTINUE
    assert ("row-remap-pending", severity, action) == (finding.code, str(finding.severity), finding.action)


def test_boards_without_a_majority_are_all_right(nvml_standin, tmp_path):
    """Of two nobody knows which is the odd one."""
    assert [] == codes(health_on(nvml_standin, FAULTS["other-vbios"](h100_sxm(2), 1), tmp_path))


def test_an_unknown_model_may_have_no_ecc(nvml_standin, tmp_path):
    scenario = machine(L4, 1).says("nvmlDeviceGetName", "NVIDIA Z1").says("nvmlDeviceGetEccMode", (0, 0))

    assert [] == codes(health_on(nvml_standin, scenario, tmp_path))


def test_a_recovery_that_nobody_knows_yet(nvml_standin, tmp_path):
    outcome = health_on(nvml_standin, h100_sxm(1).field(230, 99), tmp_path)

    assert "something that this program does not know (recovery action 99), wanted 0" in only(outcome).message


@pytest.mark.parametrize("fault", ["remap-pending", "repair-pending"])
def test_hints_do_not_contradict_the_driver(nvml_standin, tmp_path, fault):
    """What waits for a reset can wait, unless the driver asks for one now; of two GPUs one may do so."""
    scenario = FAULTS[fault](FAULTS[fault](h100_sxm(2), 0), 1).field(230, 4, gpu=1)
    outcome = health_on(nvml_standin, scenario, tmp_path)

    waits, wanted, with_it = outcome.findings
    assert ("gpu-recovery-wanted", waits.code) == (wanted.code, with_it.code)
    assert [[0], [1]] == [[gpu["index"] for gpu in f.evidence["gpus"]] for f in (waits, with_it)]
    assert "nothing now: reset the GPU when the node is free" == waits.hint
    assert "do what gpu-recovery-wanted says of this GPU: it is done with by the same reset" == with_it.hint


@pytest.mark.parametrize("actions, expected", [((0, 1), ["gpu-recovery-wanted"]), ((3, 0), [])])
def test_the_last_recovery_that_is_wanted_counts(nvml_standin, tmp_path, actions, expected):
    """The driver may ask for one while the check runs, or be content again; the report has the same."""
    scenario = h100_sxm(1).field(230, actions[0]).field(230, actions[1], from_call=2)
    outcome = health_on(nvml_standin, scenario, tmp_path)

    assert (expected, actions[1]) == (codes(outcome), outcome.measurements["gpus"][0]["recovery_action"])


def test_a_gpu_that_wants_a_reset_says_so(nvml_standin, tmp_path):
    """In NVML's words."""
    outcome = health_on(nvml_standin, FAULTS["reset-required"](h100_sxm(), 3), tmp_path)

    assert "GPU 3: NVML says `GPU requires restart`, wanted answers" == only(outcome).message


def test_all_gpus_are_lost(nvml_standin, tmp_path):
    """Then nothing else is said of them."""
    outcome = health_on(nvml_standin, h100_sxm(2).loses(0, from_call=0).loses(1, from_call=0), tmp_path)

    assert [("gpu-health", "error", "gpu-lost", [0, 1])] == found({"gpu-health": outcome})


def test_a_gpu_whose_xids_nobody_hears_is_told(nvml_standin, tmp_path):
    """No XID is then no proof; those of the others are heard."""
    deaf = h100_sxm(3).fails("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=1)
    outcome = health_on(nvml_standin, deaf.raises(79, gpu=1).raises(48, gpu=2), tmp_path)

    assert [("gpu-health", "error", "gpu-xid", [2])] == found({"gpu-health": outcome})
    assert "GPU 1: Not Supported" == outcome.measurements["not_read"]["xids"]


def test_a_gpu_that_is_lost_is_not_deaf(nvml_standin, tmp_path):
    """That it is lost says it all."""
    assert {"xids"}.isdisjoint(
        health_on(nvml_standin, FAULTS["lost"](h100_sxm(3), 1), tmp_path).measurements["not_read"]
    )


@pytest.mark.parametrize("fault", ["hung-driver", "hung-gpu"])
def test_a_hang_is_an_error_of_the_check(nvml_standin, tmp_path, fault):
    """Within the budget, and nothing of it is left running."""
    context = context_of(tmp_path)
    listed = [Listed("gpu-clocks", "preflight_checks.gpu_clocks:gpu_clocks", "trainer-agent")]

    def checked():
        adopt_orphans()
        began = time.monotonic()
        (result,) = run_checks(listed, context, timeout_s=1.0)
        took = time.monotonic() - began
        while descendants() and time.monotonic() < began + 60:
            time.sleep(0.01)
        return result, took, descendants()

    result, took, left = nvml_standin.call(FAULTS[fault](h100_sxm(), 3), checked)

    assert (Status.ERROR, True, []) == (result.status, took < 20, left)


@pytest.mark.parametrize(
    "fault, timeout_s, message",
    [
        ("hung-driver", 0.3, "NVML gave no answer within 0.3 s, asked about its start"),
        # So long, as a busy machine may take a second to ask for the others.
        ("hung-gpu", 4.0, f"GPU 3 ({uuid(3)}, {bus_id(3)}): NVML gave no answer within 4 s"),
    ],
)
def test_a_hang_says_what_was_asked(nvml_standin, tmp_path, fault, timeout_s, message):
    context = context_of(tmp_path)

    def hung():
        with pytest.raises(NvmlHungError) as caught:
            read_gpus(context, "heat", timeout_s=timeout_s)
        return str(caught.value)

    said = nvml_standin.call(FAULTS[fault](h100_sxm(), 3), hung)
    assert message == said
