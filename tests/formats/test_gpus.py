"""gpus: who is who by index, UUID and PCI address, and what each check says about whom."""

import pytest

from trainer_agent.formats.gpus import MOST_GPUS, grid, names_in


def check(name, *findings, status="pass", **measurements):
    return {"name": name, "status": status, "findings": list(findings), "measurements": measurements}


def finding(severity="error", **evidence):
    return {"severity": severity, "evidence": evidence}


@pytest.mark.parametrize(
    "value, loose, strict",
    [
        ({"gpu": 3}, [{"index": "3"}], [{"index": "3"}]),
        ({"gpu_uuid": "GPU-1", "index": 0}, [{"index": "0", "uuid": "GPU-1"}], [{"uuid": "GPU-1"}]),
        ({"uuid": "MIG-1"}, [{"uuid": "MIG-1"}], [{"uuid": "MIG-1"}]),
        ({"index": 3}, [{"index": "3"}], []),
        ({"pci": "00000000:17:00.0"}, [{"pci": "0000:17:00.0"}], []),
        ({"gpus": [1, "GPU-2", "0000:17:00.0"]}, *[[{"index": "1"}, {"uuid": "GPU-2"}, {"pci": "0000:17:00.0"}]] * 2),
        ({"gpus": [{"index": 1}]}, [{"index": "1"}], [{"index": "1"}]),
        ({"deep": [{"gpu": 1}]}, [{"index": "1"}], [{"index": "1"}]),
        ({"gpus": 8, "gpu": "NVIDIA H200", "index": True, "uuid": "", "pci": None}, [], []),
        ({"down": [0, 3], "nvml": {"gpus": "x"}}, [], []),
        ({"index": "9" * 5000, "gpu": "²"}, [], []),
    ],
)
def test_names(value, loose, strict):
    """`index` and `pci` mean a GPU only in checks of GPUs; what has no form of a name is none."""
    assert (loose, strict) == (list(names_in(value, loose=True)), list(names_in(value, loose=False)))


def test_one_gpu_by_three_names_is_one_row():
    """Whichever name a finding has, it finds its row; rows stand in order of their index."""
    listed = check("gpu-count", gpus=[{"index": n, "uuid": f"GPU-{n}", "pci": f"0000:{n}7:00.0"} for n in (10, 9)])
    by_uuid = check("cuda", finding(uuid="GPU-9"), status="fail")
    by_pci = check("gpu-link", finding("warning", pci="00000000:97:00.0"), status="warn")

    found = grid([listed, by_uuid, by_pci])

    assert ["GPU 9", "GPU 10"] == [g.title for g in found.gpus]
    assert [["pass", "fail", "warn"], ["pass", "pass", "pass"]] == found.cells


def test_a_count_alone_gives_rows():
    """As `gpu-count` measures; another check's number called so means nothing, nor does one beyond reason."""
    assert ["GPU 0", "GPU 1"] == [g.title for g in grid([check("gpu-count", gpus=2)]).gpus]
    for name, count in (("cgroup", 2), ("gpu-count", 0), ("gpu-count", MOST_GPUS + 1), ("gpu-count", "2")):
        assert grid([check(name, gpus=count)]) is None


def test_a_count_beside_other_numbers_means_no_numbers():
    """NVML refuses the GPUs of others, and those that are ours keep theirs."""
    found = grid([check("gpu-count", gpus=2), check("gpu-health", gpus=[{"index": 4}, {"index": 5}])])
    assert ["GPU 4", "GPU 5"] == [g.title for g in found.gpus]


def test_what_a_check_says_about_a_gpu():
    """Its own finding, or the status of a check that did not look; `none` where it cannot be told."""
    known = check("gpu-count", gpus=2)
    columns = {
        "gpu-a": (check("gpu-a", finding("info", gpu=0)), "pass", "pass", ""),
        "gpu-b": (check("gpu-b", status="skip"), "skip", "skip", ""),
        "gpu-c": (check("gpu-c", status="error"), "error", "error", ""),
        "gpu-d": (check("gpu-d", finding(), status="fail"), "none", "none", "fail"),
        "gpu-e": (check("gpu-e", finding("warning"), finding(gpu=1), status="fail"), "none", "fail", "warn"),
        "gpu-f": (check("gpu-f", finding("info")), "pass", "pass", ""),
        "gpu-g": (check("gpu-g", gpus=[{"index": 1}]), "none", "pass", ""),
    }

    found = grid([known, check("shm"), *(c for c, *_ in columns.values())])

    assert [0, *range(2, 9)] == found.columns
    for number, (name, (_, first, second, node)) in enumerate(columns.items(), start=1):
        row = (found.cells[0][number], found.cells[1][number], found.node[number])
        assert (name, (first, second, node)) == (name, row)


def test_a_gpu_without_an_index_comes_last_under_the_name_it_has():
    found = grid([check("cuda", finding(gpu_uuid="GPU-x"), finding(gpu=1), status="fail")])

    assert ["GPU 1", "GPU-x"] == [g.title for g in found.gpus]


def test_who_differs_in_one_name_is_somebody_else():
    """Two containers may call different GPUs by the same index."""
    found = grid([check("gpu-count", gpus=[{"index": 0, "uuid": "GPU-a"}, {"index": 0, "uuid": "GPU-b"}])])

    assert ["GPU-a", "GPU-b"] == [g.names["uuid"] for g in found.gpus]
