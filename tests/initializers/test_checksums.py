"""A list of checksums is read as coreutils wrote it."""

import hashlib
import re
import subprocess

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.initializers.checksums import read_checksums, unmatched

FILES = {
    "plain": b"1",
    "deep/er/file.bin": b"2",
    "with space  and (brackets) = here": b"3",
    "\u00fcml\u00e4ut": b"4",
    "new\nline": b"5",
    "back\\slash": b"6",
    "back\\nslash and n": b"7",
    "*star": b"8",
    "carriage\rreturn": b"9",
    "Unicode's own ends\u2028of\x85line\x0b": b"10",
    "-dash": b"11",
    " leading and trailing ": b"12",
}
SHA256 = "0123456789abcdef" * 4
MD5 = "0123456789abcdef" * 2
HINT = "write it with `sha256sum`, in the directory that the URI names"


@pytest.fixture
def directory(tmp_path):
    for name, body in FILES.items():
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    return tmp_path / "data"


@pytest.fixture
def listed(tmp_path):
    """Return a function that writes a list and reads it."""

    def read(data):
        file = tmp_path / "SUMS"
        file.write_bytes(data if isinstance(data, bytes) else data.encode())
        return read_checksums(file)

    return read


def failure(function, *args):
    with pytest.raises(FatalError) as caught:
        function(*args)
    return caught.value.code, caught.value.message, caught.value.hint


@pytest.mark.parametrize("options", [(), ("--binary",), ("--tag",)], ids=["text", "binary", "tag"])
@pytest.mark.parametrize("algorithm", ["sha256", "sha1", "md5"])
def test_what_coreutils_writes_is_understood(directory, listed, algorithm, options):
    """Names of any characters too, which it escapes."""
    written = subprocess.check_output([f"{algorithm}sum", *options, "--", *FILES], cwd=directory)

    wanted = {name: f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}" for name, body in FILES.items()}
    assert wanted == listed(written)


def test_find_writes_names_with_a_dot_before(directory, listed):
    written = subprocess.check_output("find . -type f -exec sha256sum {} +", shell=True, cwd=directory)

    assert {n: f"sha256:{hashlib.sha256(body).hexdigest()}" for n, body in FILES.items()} == listed(written)


def test_zero_terminated_lists_are_refused(directory, listed):
    """They are not escaped, so a name could pretend to be a line."""
    written = subprocess.check_output(["sha256sum", "--zero", "--", "plain", "-dash"], cwd=directory)

    code, message, _ = failure(listed, written)
    assert ("checksums-invalid", "line 1") == (code, re.search(r"line \d+", message)[0])


@pytest.mark.parametrize(
    "text",
    [
        f"{SHA256}  a\n{MD5}  b\n",
        f"{SHA256}  a\r\n{MD5}  b\r\n",
        f"\ufeff{SHA256}  a\n{MD5}  b",
        f"{SHA256.upper()}  a\n{MD5.upper()} *b\n",
        f"# a comment\n\n   \n{SHA256}  a\n{SHA256}  ./a\n{MD5}  b\n",
        f"SHA256 (a) = {SHA256}\nMD5 (b) = {MD5}\n",
    ],
    ids=["Unix", "Windows", "byte order mark", "upper case", "comments and the same twice", "tags"],
)
def test_forms_of_the_same_list(listed, text):
    assert {"a": f"sha256:{SHA256}", "b": f"md5:{MD5}"} == listed(text)


def test_an_unknown_escape_stays_as_it_is(listed):
    assert {"a\\qb\nc": f"sha256:{SHA256}"} == listed(f"\\{SHA256}  a\\qb\\nc\n")


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        f"{SHA256}",
        f"{SHA256} a",
        f"{SHA256[:-1]}  a",
        f"{SHA256[:-1]}g  a",
        f"  {SHA256}  a",
        f"{SHA256 * 2}  a",
        f"MD5 (a) = {SHA256}",
        f"SHA512 (a) = {SHA256 * 2}",
        f"{SHA256}  a\0b",
    ],
)
def test_other_lines_are_refused(listed, tmp_path, line):
    """The error names the file, the line and its text."""
    message = f"{tmp_path}/SUMS, line 3: {line!r} is no line of sha256sum, sha1sum or md5sum"

    assert ("checksums-invalid", message, HINT) == failure(listed, f"# first\n{SHA256}  fine\n{line}\n")


def test_a_long_line_is_shown_in_part(listed, tmp_path):
    message = f"{tmp_path}/SUMS, line 1: {'x' * 200!r} is no line of sha256sum, sha1sum or md5sum"

    assert ("checksums-invalid", message, HINT) == failure(listed, "x" * 10_000)


def test_lines_that_contradict_each_other_are_refused(listed, tmp_path):
    message = f"{tmp_path}/SUMS, line 2: 'a' has another checksum in an earlier line"

    assert ("checksums-invalid", message, HINT) == failure(listed, f"{SHA256}  a\n{MD5}  a\n")


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "\ufeff"])
def test_a_list_of_nothing_is_refused(listed, tmp_path, text):
    assert ("checksums-invalid", f"{tmp_path}/SUMS holds no checksum", HINT) == failure(listed, text)


def test_what_cannot_be_read_is_refused(listed, tmp_path):
    absent, directory, latin = tmp_path / "absent", tmp_path, b"\xfc" + SHA256.encode()

    assert [
        ("checksums-invalid", f"{absent} cannot be read: No such file or directory", HINT),
        ("checksums-invalid", f"{directory} cannot be read: Is a directory", HINT),
        ("checksums-invalid", f"{tmp_path}/SUMS cannot be read: it is no UTF-8", HINT),
    ] == [failure(read_checksums, absent), failure(read_checksums, directory), failure(listed, latin)]


@pytest.mark.parametrize("paths,count", [(["a", "b"], 0), (["a", "b", "c", "d"], 2)])
def test_files_that_the_list_lacks_are_counted(paths, count):
    assert count == unmatched({"a": "md5:1", "b": "md5:2"}, iter(paths))


@pytest.mark.parametrize(
    "names,shown",
    [
        (["z"], "1 files that the source lacks: 'z'"),
        (["x", "y", "z"], "3 files that the source lacks: 'x', 'y', 'z'"),
        (["w", "x", "y", "z"], "4 files that the source lacks: 'w', 'x', 'y', …"),
    ],
)
def test_names_that_the_source_lacks_are_refused(names, shown):
    """A list for other data must not pass because nothing of it is looked at."""
    hint = "write the list in the directory that the URI names, of the same version of the data"

    assert ("checksums-unmatched", f"the list of checksums names {shown}", hint) == failure(
        unmatched, dict.fromkeys(["a", *names], "md5:1"), ["a", "b"]
    )
