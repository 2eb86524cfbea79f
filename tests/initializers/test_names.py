"""Every accepted name becomes exactly one file below the destination, and no other name is accepted."""

import os
import subprocess
import sys
import tracemalloc
from itertools import permutations

import pytest
from claiming import as_nobody
from fetching import bring, tree
from hypothesis import example, given
from hypothesis import strategies as st
from memory_source import Memory

from trainer_agent.errors import FatalError
from trainer_agent.initializers import HIDDEN, Entry
from trainer_agent.initializers.names import (
    MOST_COMPONENTS,
    check_parents,
    folding,
    is_below,
    refuse_folded,
    refuse_unsafe,
)
from trainer_agent.isolation import isolated

UNSAFE = "unsafe-name", "rename it at the source, or add it to IGNORE_PATTERNS"
COLLISION = "name-collision", "rename one at the source, or add it to IGNORE_PATTERNS"
IN_THE_WAY = "destination-in-the-way", "remove it, or choose another OUTPUT_PATH"
# Absolute names of tests are of a directory that does not exist: even a broken check must not overwrite anything.
ABSOLUTE = "/trainer-agent-test/x"
OUTSIDE = "is no plain path below the destination"


def refused(names):
    """Return code, message and hint, or nothing where all names are accepted."""
    try:
        refuse_unsafe(Entry(name, 1, name) for name in names)
    except FatalError as error:
        return (error.code, error.hint), error.message
    return None


def in_the_way(destination, *names):
    try:
        check_parents(destination, names)
    except FatalError as error:
        return (error.code, error.hint), error.message
    return None


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a/b/c",
        ".hidden",
        "a/.hidden",
        "...",
        "a..b/..c/d..",
        " ",
        "new\nline",
        "back\\slash",
        "C:\\x",
        "~",
        "-rf",
        "\u65e5\u672c/\U0001f600",
        f"a/{HIDDEN}/b",
        f"{HIDDEN}-not/a",
        "x" * 255,
        "\u00fc" * 127,
        "/".join(["x" * 99] * 38),
    ],
)
def test_plain_names_are_accepted(name):
    assert refused([name]) is None


@pytest.mark.parametrize(
    "name,why",
    [
        ("", OUTSIDE),
        (".", OUTSIDE),
        ("..", OUTSIDE),
        ("/", OUTSIDE),
        (ABSOLUTE, OUTSIDE),
        ("../x", OUTSIDE),
        ("a/../../x", OUTSIDE),
        ("a/..", OUTSIDE),
        ("a/./b", OUTSIDE),
        ("a//b", OUTSIDE),
        ("a/", OUTSIDE),
        ("a\0b", "holds a NUL byte"),
        (HIDDEN, "lies in the directory that is ours"),
        (f"{HIDDEN}/", OUTSIDE),
        (f"{HIDDEN}/record.json", "lies in the directory that is ours"),
        ("not \udcff text", "is no UTF-8"),
        ("a/" + "x" * 256, "has a component of 256 bytes, and 255 are the most"),
        ("x/" * 512 + "x", "has 513 components, and 512 are the most"),
        ("\u00fc" * 128, "has a component of 256 bytes, and 255 are the most"),
        ("/".join(["x" * 99] * 38) + "/x", "has 3,801 bytes, and 3,800 are the most"),
    ],
)
def test_other_names_are_refused(name, why):
    """The message says which, and of long ones the beginning."""
    shown = name if len(name) <= 200 else name[:200] + "…"

    assert (UNSAFE, f"the source has the name {shown!r}, which {why}") == refused(["fine", name])


@pytest.mark.parametrize(
    "names,message",
    [
        (["a", "b", "a"], "the source has 'a' twice"),
        (["a", "a/b"], "'a' is a file and the directory of others"),
        (["a/b/c/d", "x", "a/b"], "'a/b' is a file and the directory of others"),
        (["b/x", "b", "a", "a/x"], "'a' is a file and the directory of others"),
    ],
)
def test_names_that_want_the_same_place_are_refused(names, message):
    assert (COLLISION, message) == refused(names)


def test_names_are_looked_at_once():
    """A list may be as long as a bucket, and come from a generator."""
    rows = iter([Entry("a/b", 1, ""), Entry("a/c", 1, ""), Entry("ab", 1, "")])

    refuse_unsafe(rows)

    assert [] == list(rows)


def naive(names):
    """Return what could be said against names, by the definition."""
    parents = {"/".join(name.split("/")[:n]) for name in names for n in range(1, name.count("/") + 1)}
    both = {f"{name!r} is a file and the directory of others" for name in names if name in parents}
    return both | {f"the source has {name!r} twice" for name in names if names.count(name) > 1}


# What sorts before, between and after a name and what is below it: the bytes before "/" are many.
CLOSE = st.lists(st.sampled_from(["a", "b", "-", ".a", "a-", "a.", "a\u00e4", "\n", "\x01"]), min_size=1, max_size=3)


@given(names=st.lists(st.lists(CLOSE.map("".join), min_size=1, max_size=4).map("/".join), max_size=12))
@example(names=["a", "a-b", "a-b/c", "a-/x", "a/x"])
@example(names=["a", "a-", "a-b", "a/x"])
@example(names=["a/b/c", "a/b-c", "a/b"])
def test_collisions_are_those_of_the_definition(names):
    """Whatever stands between a name and what is below it."""
    against, found = naive(names), refused(names)

    assert bool(against) == bool(found)
    if found:
        assert (COLLISION, True) == (found[0], found[1] in against)


def refused_where_folded(names, **how):
    """Return the code of what is said against names where they are folded, or nothing."""
    try:
        refuse_folded(names, folding(**how))
    except FatalError as error:
        return error.code
    return None


# Letters that are one by case, by form, by both and by neither.
FOLDED = st.text("aA\u00e4\u00c4\u0308-/\u00dfs", min_size=1, max_size=5)


@given(names=st.sets(FOLDED, max_size=8), case=st.booleans(), unicode=st.booleans())
@example(names={"A", "a-a", "a/a"}, case=True, unicode=False)
@example(names={"a/A/-", "a/a/s"}, case=True, unicode=False)
@example(names={"\u00e4", "a\u0308"}, case=False, unicode=True)
@example(names={"\u00c4", "a\u0308"}, case=True, unicode=True)
def test_folded_names_collide_as_defined(names, case, unicode):
    """Two spellings of one path, of a file or of a directory."""
    names = [name for name in names if is_below(name)]
    if refused(names) is not None:
        return
    fold = folding(case=case, unicode=unicode)
    spellings = {}
    for name in names:
        parts = name.split("/")
        for count in range(1, len(parts) + 1):
            spellings.setdefault(fold("/".join(parts[:count])), set()).add("/".join(parts[:count]))
    collides = any(len(found) > 1 for found in spellings.values())

    assert ("name-collision" if collides else None) == refused_where_folded(names, case=case, unicode=unicode)


def test_nothing_is_folded_without_a_reason():
    assert ("A\u00e4", "a\u00e4") == (
        folding(case=False, unicode=False)("A\u00e4"),
        folding(case=True, unicode=False)("A\u00c4"),
    )


@pytest.mark.parametrize("locale,said", [("C", "FatalError"), ("C.UTF-8", "None")])
def test_a_locale_that_cannot_write_a_name_is_told(locale, said):
    """Of itself Python takes UTF-8 there, unless somebody forbids it."""
    code = """
from trainer_agent.errors import FatalError
from trainer_agent.initializers import Entry
from trainer_agent.initializers.names import refuse_unsafe
try:
    print(refuse_unsafe([Entry("a", 1, ""), Entry(chr(252), 1, "")]))
except FatalError as error:
    print(type(error).__name__, error.hint)
"""
    environ = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=True)

    assert said == done.stdout.split()[0]
    assert ("set PYTHONUTF8=1" in done.stdout) == (said == "FatalError")


@pytest.mark.lab
@pytest.mark.parametrize(
    "name",
    [lambda n: f"{n:05}" + "/x" * (MOST_COMPONENTS - 1), lambda n: "x/" * (MOST_COMPONENTS - 1) + f"{n:05}"],
    ids=["in directories of their own", "in one directory"],
)
def test_deep_names_take_little_memory_and_time(tmp_path, name):
    """A set of all directories would take 0.3 MB a name; the interpreter's table of names grows before that counts."""
    entries = [Entry(name(n), 1, "") for n in range(4000)]

    def peak():
        tracemalloc.start()
        try:
            refuse_unsafe(entries)
            check_parents(tmp_path, [entry.path for entry in entries])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert min(peak() for _ in range(2)) < 1 << 20


def test_the_deepest_key_of_s3_becomes_a_file(tmp_path):
    """The same again when it is there."""
    deep = "/".join(["x"] * MOST_COMPONENTS)
    source = Memory({deep: b"1", f"{deep[:-1]}y": b"2"})

    for _ in range(2):
        bring(source, tmp_path)

    assert source.files == tree(tmp_path)


@given(names=st.lists(st.one_of(st.text(max_size=12), st.text("a./\\\n\udcff", max_size=6)), max_size=5))
@example(names=["a/b", "a/../../outside"])
@example(names=["a", "A", "a ", "\u00e4", "a\u0308"])
def test_accepted_names_are_exactly_the_files(tmp_path_factory, names):
    """Whatever is accepted can be written, and nothing appears anywhere else."""
    root = tmp_path_factory.mktemp("names")
    destination = root / "destination"
    destination.mkdir()
    if refused(names) is not None:
        return
    for number, name in enumerate(names):
        target = destination / name
        assert target.resolve().is_relative_to(destination)
        assert target.relative_to(destination).as_posix() == name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(str(number))

    wanted = {f"destination/{name}": str(number) for number, name in enumerate(names)}
    assert wanted == {p.relative_to(root).as_posix(): p.read_text() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def destination(tmp_path):
    """Return a destination beside another directory, with something in both."""
    for name in ("destination/directory/file", "elsewhere/file"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("there before")
    return tmp_path / "destination"


def test_each_directory_is_looked_at_whatever_the_order(destination):
    """The names come in that of the source."""
    (destination / "directory" / "deep").symlink_to("nowhere")
    names = ["directory-2/x", "directory/deep/x", "directory.d/y", "directory/deep-2/x", "directory/a"]
    message = f"{destination}/directory/deep is a link to nowhere, which is not followed"

    for order in permutations(names):
        assert (IN_THE_WAY, message) == in_the_way(destination, *order)


def test_files_and_directories_that_are_there_are_fine(destination):
    """A file is replaced, and a link to one too, wherever it leads."""
    (destination / "link").symlink_to(destination.parent / "elsewhere" / "file")
    (destination / "directory-link").symlink_to(destination.parent / "elsewhere")
    (destination / "dangling").symlink_to("nowhere")
    names = ["new", "directory/file", "directory/new/deep", "directory/new/too", "link", "directory-link", "dangling"]

    assert in_the_way(destination, *names) is None
    assert ["dangling", "directory-link", "directory/file", "link"] == check_parents(destination, names)


def test_what_will_be_gone_is_not_in_the_way(destination):
    """Unless something else lies in the same directory."""
    (destination / "file").write_text("")
    leaving = ["directory/file", "file"]

    assert [] == check_parents(destination, ["directory", "file/deep/x"], leaving=leaving)
    (destination / "directory" / "other").write_text("")
    with pytest.raises(FatalError, match="directory is a directory"):
        check_parents(destination, ["directory"], leaving=leaving)


@pytest.mark.parametrize("beside", ["an empty directory", "a link", "nothing at all"])
def test_an_empty_directory_is_in_the_way_whatever_else_leaves(destination, beside):
    """Only directories that files leave are removed with them; and what a link leads to is nobody's to look at."""
    name = "empty" if beside == "nothing at all" else "directory"
    match beside:
        case "an empty directory":
            (destination / "directory" / "deep" / "empty").mkdir(parents=True)
        case "a link":
            (destination / "directory" / "link").symlink_to(destination.parent / "elsewhere")
        case "nothing at all":
            (destination / "empty").mkdir()

    with pytest.raises(FatalError) as caught:
        check_parents(destination, [name], leaving=["directory/file"])

    message = f"{destination}/{name} is a directory, and the source has a file of that name"
    assert (IN_THE_WAY, message) == ((caught.value.code, caught.value.hint), caught.value.message)


@pytest.mark.parametrize("beside", ["elsewhere", "a/old"], ids=["beside it", "in it"])
def test_an_empty_directory_in_the_way_is_told_before_anything_goes(tmp_path, beside):
    """Whatever else goes with the source."""
    before = {"keep": b"k", beside: b"o"}
    bring(Memory(before), tmp_path)
    (tmp_path / "a" / "empty").mkdir(parents=True)
    source = Memory({"keep": b"k", "a": b"new"})
    with pytest.raises(FatalError, match="a is a directory, and the source has a file of that name"):
        bring(source, tmp_path)

    assert ([], before) == (source.reads, tree(tmp_path))


def test_a_directory_that_cannot_be_looked_at_is_in_the_way(destination):
    """Nobody knows what lies in it."""
    closed = destination / "directory" / "closed"
    closed.mkdir(mode=0)

    def refused():
        try:
            check_parents(as_nobody(destination), ["directory"], leaving=["directory/file"])
        except FatalError as error:
            return error.code
        return None

    code = isolated(refused, timeout_s=10)
    closed.chmod(0o700)
    assert "destination-in-the-way" == code


@pytest.mark.parametrize("target", ["../elsewhere", "directory", "nowhere"], ids=["outside", "inside", "dangling"])
@pytest.mark.parametrize("name", ["link/file", "link/deep/file"])
def test_a_link_on_the_way_is_not_followed(destination, target, name):
    (destination / "link").symlink_to(target)

    assert (IN_THE_WAY, f"{destination}/link is a link to {target}, which is not followed") == in_the_way(
        destination, "new", name
    )


def test_a_file_on_the_way_is_refused(destination):
    message = f"{destination}/directory/file is a file, and the source has a directory of that name"

    assert (IN_THE_WAY, message) == in_the_way(destination, "directory/other", "directory/file/deep")


def test_a_directory_in_place_of_a_file_is_refused(destination):
    message = f"{destination}/directory is a directory, and the source has a file of that name"

    assert (IN_THE_WAY, message) == in_the_way(destination, "directory")


def test_the_destination_itself_may_be_a_link(destination):
    link = destination.parent / "link"
    link.symlink_to(destination)

    assert in_the_way(link, "directory/file", "new/file") is None
