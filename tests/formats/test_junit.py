"""junit: what Jenkins and GitLab read, one case for each check."""

import re
from xml.etree import ElementTree as ET

from trainer_agent.formats.junit import write

# What the schema of Jenkins (junit-10.xsd of its xunit plugin) knows of what we write.
ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors", "skipped"},
    "testsuite": {"name", "time", "tests", "failures", "errors", "skipped", "timestamp", "hostname"},
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "system-out": set(),
}


def parse(text):
    root = ET.fromstring(text)
    assert {} == {e.tag: e.attrib for e in root.iter() if not e.attrib.keys() <= ATTRIBUTES[e.tag]}
    return root


def test_one_case_for_each_check(data):
    """Under a class that stays the same from job to job, in the order of the report."""
    cases = list(parse(write(data)).iter("testcase"))

    assert [c["name"] for c in data["checks"]] == [c.get("name") for c in cases]
    assert {"trainer-agent.preflight.node-3"} == {c.get("classname") for c in cases}
    assert ["0.012", "0.000", "0.400", "1.250", "0.000", "0.000", "5.000"] == [c.get("time") for c in cases]


def test_outcomes(data):
    """A warning is a success with words; a check that broke is an error, not a failure."""
    cases = {c.get("name"): c for c in parse(write(data)).iter("testcase")}

    outcomes = {name: case[0].tag for name, case in cases.items()}
    assert {
        "environment": "system-out",
        "shm": "system-out",
        "gpu-count": "system-out",
        "gpu-memory": "failure",
        "gpu-link": "system-out",
        "gpu-clocks": "skipped",
        "cuda": "error",
    } == outcomes
    assert {"message": "1 of 8 GPUs is bad", "type": "gpu-memory-errors"} == cases["gpu-memory"][0].attrib
    assert {"message": data["checks"][6]["message"], "type": "check-broke"} == cases["cuda"][0].attrib
    assert {"message": "runs from --profile deep on"} == cases["gpu-clocks"][0].attrib


def test_a_failure_says_all_that_was_found(data):
    """GitLab shows the text alone."""
    failure = parse(write(data)).find(".//failure")

    expected = """\
1 of 8 GPUs is bad
error: GPU 5 has 3 uncorrectable memory errors since boot, wanted 0 [gpu-memory-errors]
  -> drain node worker-3 and reset GPU 5: nvidia-smi --gpu-reset -i 5
  evidence: {"gpu": 5, "uuid": "GPU-00000005-aaaa-bbbb-cccc-dddddddddddd", "errors": 3}"""
    assert expected == failure.text
    assert [
        "0.1 GiB",
        "warning: 64 MiB, wanted 8 GiB [shm-small]",
        "  -> mount an emptyDir",
        "size_bytes: 67108864",
    ] == (parse(write(data)).find(".//testcase[@name='shm']/system-out").text.splitlines())


def test_the_suite(data):
    """Counts, time, place and verdict, in the form that Jenkins' schema demands."""
    root = parse(write(data))

    counts = {"tests": "7", "failures": "1", "errors": "1", "skipped": "1", "time": "6.500"}
    suite = {"name": "trainer-agent preflight", **counts, "timestamp": "2026-01-01T00:00:00", "hostname": "worker-3"}
    assert [{"name": "trainer-agent", **counts}, suite] == [root.attrib, root[0].attrib]
    properties = [(p.get("name"), p.get("value")) for p in root.iter("property")]
    assert [
        ("schema", "trainer-agent.preflight/v1"),
        ("verdict", "retry"),
        ("meaning", "Do not train here now: the same pod again, or another node, may pass."),
        ("exit_code", "20"),
        ("action", "reschedule"),
        ("suspect", f"node worker-3: {data['suspects'][0]['reason']}"),
        *data["versions"].items(),
    ] == properties


def test_hostile_texts_stay_texts(data, hostile):
    """Every character that XML 1.0 forbids is written out, and no text becomes an element."""
    text = write(hostile)
    root = parse(text)

    assert re.fullmatch(r"[\n\x20-\x7e]*", text)
    allowed = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
    assert [] == [t for e in root.iter() for t in (e.text or "", *e.attrib.values()) if not allowed.fullmatch(t)]
    assert [e.tag for e in parse(write(data)).iter("testcase")] == [e.tag for e in root.iter("testcase")]
    assert [] == [e.tag for e in root.iter() if e.tag not in ATTRIBUTES]
    assert r"onerror=x>&amp;]]>\x00\x1b[2J\u202e\ud800" in root.find(".//failure").text
