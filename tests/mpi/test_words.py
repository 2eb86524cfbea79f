"""The user's mpirun command: which words are options, which are the program's, and what they say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.mpi.words import COUNTS, FOLLOWING, HOSTFILES, Asked, Part, parse, plain

VALUES = st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters="-=:"), min_size=1, max_size=6)
KNOWN = sorted(name for name in FOLLOWING if name)
DASHES = st.sampled_from(["-", "--"])


@st.composite
def options(draw):
    """Return an option with as many values as it takes, or with one behind an equals sign."""
    name = draw(st.sampled_from(KNOWN))
    word = draw(DASHES) + name
    if draw(st.booleans()) and FOLLOWING[name] == 1:
        return (f"{word}={draw(VALUES)}",)
    return (word, *draw(st.lists(VALUES, min_size=FOLLOWING[name], max_size=FOLLOWING[name])))


COMMANDS = st.lists(st.text(min_size=1).filter(lambda word: word != ":"), min_size=1, max_size=4).filter(
    lambda words: not words[0].startswith("-")
)
PARTS = st.lists(st.builds(Part, st.lists(options(), max_size=4).map(tuple), COMMANDS.map(tuple)), min_size=1)


def words_of(asked):
    """Return the words that an Asked was made of."""
    words = [asked.program]
    for number, part in enumerate(asked.parts):
        words += [":"] * bool(number) + [word for option in part.options for word in option] + list(part.command)
    return words


@given(PARTS)
def test_all_known_options_are_understood(parts):
    """What is put together from options and programs is taken apart in the same places."""
    asked = Asked("mpirun", tuple(parts))
    assert asked == parse(words_of(asked))


@given(st.lists(st.one_of(st.text(max_size=5), st.sampled_from([":", "-np", "4", "-x", "--", "-genv", "A=1", "-q="]))))
def test_no_word_is_lost(words):
    """Whatever somebody writes, the same words come out in the same order, and every question has an answer."""
    asked = parse(["mpirun", *words])
    assert ["mpirun", *words] == words_of(asked)
    assert asked.count is None or asked.count >= 0
    assert isinstance(asked.has(*HOSTFILES), bool)


def of(line):
    """Return what a line without quotes means."""
    return parse(line.split())


SDK = ("mpirun", "--hostfile", "/etc/mpi/hostfile", "bash", "-c", "python train.py --np 3")


@pytest.mark.parametrize(
    "line, given_options, command",
    [
        (SDK, [("--hostfile", "/etc/mpi/hostfile")], SDK[3:]),
        ("mpirun -np 4 ./app -np 5", [("-np", "4")], ("./app", "-np", "5")),
        ("mpirun --mca btl tcp -x A -x B=1 app", [("--mca", "btl", "tcp"), ("-x", "A"), ("-x", "B=1")], ("app",)),
        ("mpirun --report-bindings -map-by ppr:2:node a", [("--report-bindings",), ("-map-by", "ppr:2:node")], ("a",)),
        ("prterun --prtemca plm_ssh_args x app", [("--prtemca", "plm_ssh_args", "x")], ("app",)),
        ("mpirun --np=4 app", [("--np=4",)], ("app",)),
        ("mpirun -np 2 -- app -x", [("-np", "2"), ("--",)], ("app", "-x")),
        ("mpiexec -f hosts -ppn 2 -genv A 1 app", [("-f", "hosts"), ("-ppn", "2"), ("-genv", "A", "1")], ("app",)),
        ("mpiexec -genv A=1 -env B=C=D -n 1 app", [("-genv", "A=1"), ("-env", "B=C=D"), ("-n", "1")], ("app",)),
        ("mpiexec -genv A B=1 app", [("-genv", "A", "B=1")], ("app",)),
        ("mpiexec -l -prepend-rank -iface eth0 app", [("-l",), ("-prepend-rank",), ("-iface", "eth0")], ("app",)),
        ("mpirun -genvlist A,B -bootstrap ssh app", [("-genvlist", "A,B"), ("-bootstrap", "ssh")], ("app",)),
        ("mpirun --preload-binary --hetero-nodes app", [("--preload-binary",), ("--hetero-nodes",)], ("app",)),
        ("mpirun --display-comm --amca f app", [("--display-comm",), ("--amca", "f")], ("app",)),
        ("mpirun --forward-signals SIGUSR1 app", [("--forward-signals", "SIGUSR1")], ("app",)),
        ("mpirun --spawn-timeout 9 --tmpdir /t app", [("--spawn-timeout", "9"), ("--tmpdir", "/t")], ("app",)),
        ("mpirun --set-env A=1 --pset a app", [("--set-env", "A=1"), ("--pset", "a")], ("app",)),
        ("mpirun -branch-count 4 -n 2 app", [("-branch-count", "4"), ("-n", "2")], ("app",)),
        ("mpirun", [], ()),
        ("mpirun -np", [("-np",)], ()),
        ("mpirun --mca a", [("--mca", "a")], ()),
    ],
)  # fmt: skip
def test_where_the_program_begins(line, given_options, command):
    """Each implementation's options have their values; what follows is the program's own."""
    words = line.split() if isinstance(line, str) else line
    assert Asked(words[0], (Part(tuple(given_options), tuple(command)),)) == parse(words)


def test_several_programs():
    """Each part has its options and its program; an argument that is a colon separates, as mpirun sees it."""
    asked = of("mpirun -np 1 server a : -np 3 -x A client b")
    first, second = Part((("-np", "1"),), ("server", "a")), Part((("-np", "3"), ("-x", "A")), ("client", "b"))
    assert ((first, second), 4) == (asked.parts, asked.count)
    assert [("1",), ("3",)] == asked.values(*COUNTS)


@pytest.mark.parametrize("line", ["mpirun -np 2 --new-option x app", "mpirun -np 2 -- --new-option app"])
def test_an_option_that_nobody_knows(line):
    """Nobody can say where the program begins; what came before is understood, the rest stays as it is."""
    asked = of(line)
    assert ("--new-option", 2, [("2",)]) == (asked.unknown, asked.count, asked.values("np"))
    assert line.split() == words_of(asked)


def test_an_option_that_means_two_things():
    """After Open MPI's `-s`, which copies the program, comes the program; after hydra's come ranks for stdin."""
    asked = of("mpirun -n 2 -s ./app")
    assert ("-s", ("-s", "./app")) == (asked.unknown, asked.parts[0].command)


def test_what_may_stand_behind_an_unknown_option():
    """It may be an option or the program's; nobody should give it a second time."""
    asked = of("mpirun --new x --bind-to core --hostfile=f : -np 2 app --bind-to-socket")
    assert (True, True, True) == (asked.has("bind-to"), asked.has("hostfile"), asked.has("bind-to-socket"))
    assert (False, []) == (asked.has("x"), asked.values("bind-to"))
    assert not of("mpirun -np 2 app --bind-to core").has("bind-to")


@pytest.mark.parametrize(
    "line, count",
    [
        ("mpirun app", None),
        ("mpirun -np 4 app", 4),
        ("mpirun -n 4 app", 4),
        ("mpirun -c 4 app", 4),
        ("mpirun --np=4 app", 4),
        ("mpirun -np= app", None),
        ("mpirun -np 4 -np 6 app", 6),
        ("mpirun -np 4 a : b", None),
        ("mpirun -np 4 -np 6 a : b", None),
        ("mpirun -np 4 a : -np 6 b", 10),
        ("mpirun -np four app", None),
        ("mpirun -np -1 app", None),
        ("mpirun -np 0 app", None),
        ("mpirun -np ² app", None),
        ("mpirun -np", None),
        ("mpirun", None),
    ],
)
def test_the_number_of_ranks(line, count):
    """It is known where every program has one."""
    assert count == of(line).count


def test_a_command_that_is_no_mpirun():
    """It is started on all ranks as it is, even where it begins like an option."""
    assert (Asked("mpirun", (Part((), ("-m", "pkg", ":")),)), None) == (plain(("-m", "pkg", ":")), plain(("a",)).count)


@pytest.mark.parametrize(
    "line, names",
    [
        ("mpirun -genv A=1 -genv B 2 -n 1 a C=3 : -env D 4 b", {"A", "B", "D"}),
        ("mpirun -genv", set()),
        ("mpirun --new x -genv A=1 app", {"--new", "x", "-genv", "A", "app"}),
    ],
)
def test_variables(line, names):
    """Those that hydra is told to set, by either form; where nobody knows the options, they may be any words."""
    assert names == of(line).variables
