"""hostfile: both formats are read, each implementation's is written, and every wrong line is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.errors import ConfigurationError, FatalError
from trainer_agent.hostfile import (
    IMPLEMENTATIONS,
    MOST_SLOTS,
    Entry,
    Hostfile,
    from_arguments,
    of_job,
    parse,
    read,
    render,
)

NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,30}[A-Za-z0-9])?", fullmatch=True)
IPV4, IPV6 = st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).filter(lambda a: a.ipv4_mapped is None).map(str)
SLOTS = st.integers(1, MOST_SLOTS)


def hostfiles(hosts):
    """Return a strategy for hostfiles whose hosts differ."""
    entries = st.lists(st.builds(Entry, hosts, SLOTS), min_size=1, max_size=6, unique_by=lambda e: e.name.lower())
    return entries.map(lambda es: Hostfile(tuple(es)))


def pairs(hostfile):
    """Return (name, slots) of each entry."""
    return [(entry.name, entry.slots) for entry in hostfile.entries]


def wrong(text):
    """Return (code, message) of all that is wrong with a text."""
    with pytest.raises(ConfigurationError) as refused:
        parse(text, path="F")
    return [(f.code, f.message) for f in refused.value.findings]


def one_wrong(text):
    """Return what was found and wanted in a single line."""
    [(code, message)] = wrong(text)
    assert "hostfile-line-invalid" == code
    assert message.startswith("F, line 1: ")
    return message.removeprefix("F, line 1: ")


@pytest.mark.parametrize(
    "line, name, slots",
    [
        ("job-node-0-0.job slots=8", "job-node-0-0.job", 8),
        ("job-node-0-0.job:8", "job-node-0-0.job", 8),
        ("host", "host", 1),
        ("  host\t\tslots=2  \t", "host", 2),
        ("host slots = 2", "host", 2),
        ("host\tslots =2\tmax_slots= 4", "host", 2),
        ("host max-slots=4 slots=2", "host", 2),
        ("host slots=4 max_slots=4", "host", 4),
        ("host max_slots=4", "host", 4),
        ("host slots-max=4", "host", 4),
        ("host max_cpu=4", "host", 4),
        ("host count-max=4", "host", 4),
        ("host cpu=4", "host", 4),
        ("host count=4", "host", 4),
        ("host slots=2 # four cores", "host", 2),
        ("host:2#", "host", 2),
        ("host:2 max_slots=4", "host", 2),
        ("10.0.0.1 slots=2", "10.0.0.1", 2),
        ("10.0.0.1:2", "10.0.0.1", 2),
        ("fd00::1", "fd00::1", 1),
        ("fd00::1:4", "fd00::1:4", 1),
        ("::1 slots=2", "::1", 2),
        ("[fd00::1]:4", "fd00::1", 4),
        ("[fd00::1]", "fd00::1", 1),
        ("[fd00::1] slots=4", "fd00::1", 4),
        ("fd00:1", "fd00", 1),
        ("node_1.job.:2", "node_1.job.", 2),
        ("7:2", "7", 2),
        ("host:2147483647", "host", 2147483647),
    ],
)
def test_lines(line, name, slots):
    """A host in any spelling that Open MPI, Intel MPI, MPICH or their controllers have."""
    assert [(name, slots)] == pairs(parse(line, path="F"))


def test_a_file_of_a_controller():
    """Order, line numbers, comments, empty lines, and the line ends of Windows."""
    hostfile = parse("# made by hand\r\n\r\nb slots=2\r\na slots=2 \r\n   # \r\nc slots=1\r\n", path="F")

    assert [("b", 2, 3), ("a", 2, 4), ("c", 1, 6)] == [(e.name, e.slots, e.line) for e in hostfile.entries]
    assert ("b", "a", "c") == hostfile.names


HOST = "wanted a host such as node-0.job, node-0.job:4, fd00::1 or [fd00::1]:4"
NUMBER = f"as the number of slots, wanted a whole number in 1..{MOST_SLOTS}"


@pytest.mark.parametrize(
    "line, said",
    [
        ("host slots=0", f"found '0' {NUMBER}"),
        ("host:0", f"found '0' {NUMBER}"),
        ("host slots=-1", f"found '-1' {NUMBER}"),
        ("host:-1", f"found '-1' {NUMBER}"),
        ("host slots=two", f"found 'two' {NUMBER}"),
        ("host slots=1.5", f"found '1.5' {NUMBER}"),
        ("host slots=", f"found '' {NUMBER}"),
        ("host slots", f"found '' {NUMBER}"),
        ("host:", f"found '' {NUMBER}"),
        ("[fd00::1]:", f"found '' {NUMBER}"),
        ("[fd00::1]:x", f"found 'x' {NUMBER}"),
        ("host:2147483648", f"found '2147483648' {NUMBER}"),
        ("host max_slots=0", f"found '0' {NUMBER}"),
        ("host slots=\u0663", f"found '\u0663' {NUMBER}"),
        ("host slot=2", "found 'slot=2' after the host, wanted slots=N or max_slots=N"),
        ("host other", "found 'other' after the host, wanted slots=N or max_slots=N"),
        ("host port=22", "found 'port=22' after the host, wanted slots=N or max_slots=N"),
        ("host:2 slots=2", "found the number of slots twice, wanted it once"),
        ("host slots=2 cpu=2", "found the number of slots twice, wanted it once"),
        ("host max_slots=2 max-slots=2", "found the number of slots twice, wanted it once"),
        ("host slots=4 max_slots=3", "found max_slots=3 with 4 slots, wanted at least as many"),
        ("slots=4", f"found 'slots=4', {HOST}"),
        (":4", f"found ':4', {HOST}"),
        ("-host", f"found '-host', {HOST}"),
        ("user@host", f"found 'user@host', {HOST}"),
        ("ho\u00dft", f"found 'ho\u00dft', {HOST}"),
        ("fd00::1::2", f"found 'fd00::1::2', {HOST}"),
        ("[fd00::1", f"found '[fd00::1', {HOST}"),
        ("[host]:4", f"found '[host]:4', {HOST}"),
        ("[fd00::1]4", f"found '[fd00::1]4', {HOST}"),
        ("fe80::1%eth0", f"found 'fe80::1%eth0', {HOST}"),
        ("::ffff:10.0.0.1", f"found '::ffff:10.0.0.1', {HOST}"),
    ],
)
def test_wrong_lines(line, said):
    """What was found and what was wanted."""
    assert said == one_wrong(line)


def test_all_wrong_lines_at_once():
    """Each with its number, beside the hosts that are named twice; the hint says what to write."""
    text = "a:0\n# b\nc slots=2\nd=1\nC. slots=1\nfd00::1\ne\n[fd00:0::1]:2\ne:1\ne:2\n"
    expected = [
        ("hostfile-line-invalid", f"F, line 1: found '0' {NUMBER}"),
        ("hostfile-line-invalid", f"F, line 4: found 'd=1', {HOST}"),
        ("hostfile-duplicate", "F: c stands in lines 3 and 5, wanted each host once"),
        ("hostfile-duplicate", "F: fd00::1 stands in lines 6 and 8, wanted each host once"),
        ("hostfile-duplicate", "F: e stands in lines 7, 9 and 10, wanted each host once"),
    ]

    assert expected == wrong(text)
    with pytest.raises(ConfigurationError) as refused:
        parse(text, path="F")
    assert {
        "write each host as `host slots=4` or as `host:4`",
        "write each host once, with all its slots: MPI implementations differ in what a second line means",
    } == {f.hint for f in refused.value.findings}


@pytest.mark.parametrize("text", ["", "\n\r\n", "# nobody\n  #\n"])
def test_a_file_without_hosts(text):
    """Nobody to start on."""
    assert [("hostfile-empty", "F names no host, wanted one or more")] == wrong(text)


def test_wrong_arguments():
    """A list of hosts is counted in arguments; a comment is none there."""
    with pytest.raises(ConfigurationError) as refused:
        from_arguments(["a:2", "b:x", "#", "a"])
    expected = [
        f"the command line, argument 2: found 'x' {NUMBER}",
        f"the command line, argument 3: found '#', {HOST}",
        "the command line: a stands in arguments 1 and 4, wanted each host once",
    ]
    assert expected == [f.message for f in refused.value.findings]
    assert [("a", 2), ("b", 1), ("fd00::1", 3)] == pairs(from_arguments(["a:2", "b", "[fd00::1]:3"]))


def test_read(tmp_path):
    """A file with the byte order mark of Windows is read like any other."""
    path = tmp_path / "hostfile"
    path.write_bytes("a slots=2\r\nb slots=3".encode("utf-8-sig"))
    assert [("a", 2), ("b", 3)] == pairs(read(str(path)))


def test_a_file_of_other_bytes(tmp_path):
    """What is no text is a wrong line with its number."""
    path = tmp_path / "hostfile"
    path.write_bytes(b"a\n\xff\xfe\n")
    with pytest.raises(ConfigurationError, match=f"^{path}, line 2: found '\ufffd\ufffd', wanted a host"):
        read(str(path))


def test_a_file_that_cannot_be_read(tmp_path):
    """The path, the system's reason, and what to do."""
    with pytest.raises(FatalError) as refused:
        read(str(tmp_path / "none"))
    hint = "mount the hostfile there, name another with --hostfile, or give --job or the hosts themselves"
    expected = ("hostfile-unreadable", f"cannot read {tmp_path}/none: No such file or directory", hint)
    assert expected == (refused.value.code, refused.value.message, refused.value.hint)


def test_names_of_a_job():
    """As JobSet names the pods of a TrainJob."""
    assert [("j-node-0-0.j", 1), ("j-node-0-1.j", 1)] == pairs(of_job("j", nnodes=2))
    assert ("j-node-0-0.s",) == of_job("j", nnodes=1, subdomain="s").names
    assert 0 == of_job("j", nnodes=1).entries[0].line


@pytest.mark.parametrize("nnodes, workers", [(1, 1), (2, 1), (4, 3)])
def test_the_launcher_may_be_a_node(nnodes, workers):
    """As Trainer counts with runLauncherAsNode: the launcher, and the other nodes, of which one is made in any case."""
    names = of_job("j", nnodes=nnodes, launcher=True).names

    assert ("j-launcher-0-0.j", *(f"j-node-0-{index}.j" for index in range(workers))) == names


def test_formats():
    """Each implementation's own; Open MPI takes an IPv6 address as it is."""
    hostfile = Hostfile((Entry("b", 2), Entry("10.0.0.1", 1)))
    assert "b slots=2\n10.0.0.1 slots=1\n" == render(hostfile, "openmpi")
    assert "b:2\n10.0.0.1:1\n" == render(hostfile, "intel") == render(hostfile, "mpich")
    assert "fd00::1 slots=3\n" == render(Hostfile((Entry("fd00::1", 3),)), "openmpi")


@pytest.mark.parametrize("implementation", ["intel", "mpich"])
def test_hydra_has_no_ipv6(implementation):
    """It would take what stands before the first colon for the host; all addresses are named."""
    hostfile = Hostfile((Entry("fd00::1"), Entry("a"), Entry("fd00::2"), Entry("fd00::3")))
    with pytest.raises(ConfigurationError) as refused:
        render(hostfile, implementation)
    addresses = "fd00::1, fd00::2 and fd00::3"
    message = f"{addresses}: a hostfile for {implementation} cannot hold IPv6, wanted names or IPv4 addresses"
    hint = "leave out --resolve and give names, or use --implementation openmpi"
    assert ("hostfile-ipv6", message, hint) == (refused.value.code, refused.value.message, refused.value.hint)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@given(data=st.data())
def test_what_is_written_is_read_again(implementation, data):
    """Hosts, slots and their order survive."""
    hosts = NAMES | IPV4 | IPV6 if implementation == "openmpi" else NAMES | IPV4
    hostfile = data.draw(hostfiles(hosts))

    assert hostfile == parse(render(hostfile, implementation), path="F")


@given(st.text(alphabet="ah0.:[]=# \t\r\nslotmax_-", max_size=60))
def test_any_text_is_a_hostfile_or_refused(text):
    """What is read has slots and differing names, and can be written for Open MPI."""
    try:
        hostfile = parse(text, path="F")
    except ConfigurationError:
        return
    assert all(entry.slots >= 1 for entry in hostfile.entries)
    assert hostfile == parse(render(hostfile, "openmpi"), path="F")


def test_other_slots():
    """Every host gets them; order and lines stay."""
    hostfile = parse("a:1\n\nb:3", path="F").with_slots(8)
    assert [("a", 8, 1), ("b", 8, 3)] == [(e.name, e.slots, e.line) for e in hostfile.entries]


def test_addresses():
    """Each name is replaced where it stands, and keeps its slots."""
    hostfile = parse("b:2\na:1", path="F").with_addresses({"a": "10.0.0.1", "b": "10.0.0.2"})
    assert [("10.0.0.2", 2), ("10.0.0.1", 1)] == pairs(hostfile)


def test_two_names_with_one_address():
    """All of them are named, for each such address."""
    hostfile = parse("a\nb\nc\nd\ne\nf", path="F")
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.1", "d": "10.0.0.2", "e": "10.0.0.5", "f": "10.0.0.1"}
    with pytest.raises(ConfigurationError) as refused:
        hostfile.with_addresses(addresses)
    hint = "name each host once; where a pod was just replaced, its old address is gone from the name server after 30 s"
    expected = [
        ("hostfile-same-address", "a, c and f have one address, 10.0.0.1, wanted one each", hint),
        ("hostfile-same-address", "b and d have one address, 10.0.0.2, wanted one each", hint),
    ]
    assert expected == [(f.code, f.message, f.hint) for f in refused.value.findings]
