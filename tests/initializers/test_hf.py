"""Files of a Hub, read over HTTP from a server that huggingface_hub itself can read from."""

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from authority import server_context
from fetching import bring
from hub import Hub
from hub_repository import Blob

from trainer_agent.errors import FatalError
from trainer_agent.initializers import Entry, OfflineError
from trainer_agent.initializers.hf import HubSource

TOKEN = "hf_aVerySecretToken"
DATASET = "datasets/org/name"
BIG = random.Random(7).randbytes(3 << 20)
STRANGE = [
    "with space.txt",
    "q?a=b&c.txt",
    "h#x.txt",
    "per%20cent%.txt",
    "pl+us.txt",
    "ü/ñ/日本.txt",
    "[b]{c}~^`|.txt",
    "back\\slash.txt",
    "star*=;@!$'(),:.txt",
    "dot..dot",
]
FILES = {"a.txt": b"alpha", "empty": b"", "data/deep/b.bin": bytes(range(256)) * 64, "big.bin": BIG}
FILES |= {name: name.encode() for name in STRANGE}


@pytest.fixture
def hub():
    with Hub() as server:
        server.repository(DATASET).commit(FILES)
        yield server


@pytest.fixture
def repo(hub):
    return hub.repos[DATASET]


@pytest.fixture
def source(hub):
    """Return a function that opens a URI's rest on the Hub; attempts go on for `patience_s`."""

    def opened(rest="org/name", *, kind="dataset", patience_s=20.0, **environ):
        return HubSource(rest, {"HF_ENDPOINT": hub.endpoint, **environ}, kind=kind, patience_s=patience_s)

    return opened


def read(source, entry, start, stop):
    return b"".join(map(bytes, source.read(entry, start, stop)))


def entry_of(source, path):
    return next(e for e in source.entries() if e.path == path)


@pytest.mark.parametrize("redirects", [False, True], ids=["direct", "redirected"])
def test_every_file_arrives_whatever_its_name(hub, source, contents, redirects):
    """Large ones lie on the CDN; small ones may be behind a redirect on the Hub itself."""
    hub.small_redirects = redirects

    assert FILES == contents(source())


def test_same_tree_as_huggingface_hub(hub, source, contents, tmp_path, tree):
    """The server is real enough for the real client, and what we bring is what it brings."""
    code = (
        "import sys; from huggingface_hub import snapshot_download\n"
        "snapshot_download('org/name', repo_type='dataset', endpoint=sys.argv[1], local_dir=sys.argv[2], token=False)"
    )
    environ = {"PATH": os.environ["PATH"], "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", code, hub.endpoint, str(tmp_path / "theirs")]
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=60)
    theirs = {path: data for path, data in tree(tmp_path / "theirs").items() if not path.startswith(".cache/")}

    assert FILES == theirs
    assert theirs == contents(source())


def test_checksums_are_those_of_the_bytes(source):
    git = {path: hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() for path, data in FILES.items()}
    wanted = {path: f"git-sha1:{sha1}" for path, sha1 in git.items()}
    wanted["big.bin"] = f"sha256:{hashlib.sha256(BIG).hexdigest()}"
    opened = source()

    assert wanted == {e.path: opened.checksum(e) for e in opened.entries()}
    assert all(e.checksum.endswith(e.version) for e in opened.entries())


@pytest.mark.parametrize("more", [{"oid": "v1"}, {"oid": "a" * 40, "xetHash": "b" * 64}], ids=["other", "pointer"])
def test_what_is_no_hash_of_the_bytes_is_no_checksum(hub, source, more):
    """A Hub that names its files in another way can still be read."""
    listed = [{"type": "file", "path": "a.txt", "size": 5, **more}]
    hub.fault("/tree/", status=200, body=json.dumps(listed).encode())

    assert [Entry("a.txt", 5, "a.txt", more["oid"])] == list(source().entries())


@pytest.mark.parametrize("redirects", [False, True], ids=["direct", "redirected"])
def test_mirror_may_lie_below_a_path(contents, redirects):
    with Hub(below="/mirrors/hub") as hub:
        hub.small_redirects = redirects
        hub.repository(DATASET).commit(FILES)
        opened = HubSource("org/name", {"HF_ENDPOINT": f"{hub.endpoint}/"})

        assert FILES == contents(opened)
        assert BIG[5:9] == read(opened, entry_of(opened, "big.bin"), 5, 9)


@pytest.mark.parametrize(
    "path",
    [
        ("org/name/data", {"data/deep/b.bin": "deep/b.bin"}),
        ("org/name/data/deep", {"data/deep/b.bin": "b.bin"}),
        ("org/name/data/deep/b.bin", {"data/deep/b.bin": "b.bin"}),
        ("org/name/with space.txt", {"with space.txt": "with space.txt"}),
        ("org/name@main/ü", {"ü/ñ/日本.txt": "ñ/日本.txt"}),
    ],
)
@pytest.mark.parametrize("kind", ["dataset", "model"])
@pytest.mark.parametrize("refused", [0, 400, 404, 405, 501])
def test_path_is_a_directory_or_a_file(hub, source, kind, path, refused):
    """
    A dataset's files keep the repository's paths; a model's are relative; a beginning of a name is neither.

    Mirrors may not know how to say which of them a path is.
    """
    hub.repository("models/org/name").commit(FILES)
    if refused:
        hub.fault("/paths-info/", status=refused)

    rest, in_model = path
    found = {e.key: e.path for e in source(rest, kind=kind).entries()}

    assert found == (in_model if kind == "model" else {key: key for key in in_model})
    assert len(hub.requests("/paths-info/")) == 1


@pytest.mark.parametrize("refused", [0, 400])
@pytest.mark.parametrize("path", ["dat", "data/deep/b", "Data", "data/deep/b.bin/x"])
def test_path_that_is_nothing_is_fatal(hub, source, path, refused):
    if refused:
        hub.fault("/paths-info/", status=refused)

    with pytest.raises(FatalError, match="org/name has no") as caught:
        list(source(f"org/name/{path}").entries())

    assert "hub-file-not-found" == caught.value.code


def test_old_repositories_have_no_organisation(hub, source, contents):
    hub.repository("models/gpt2").commit({"config.json": b"{}"})
    hub.repository("datasets/squad").commit({"plain_text/x": b"1"})

    assert {"config.json": b"{}"} == contents(source("gpt2", kind="model"))
    assert {"plain_text/x": b"1"} == contents(source("datasets/squad@main/plain_text", kind="model"))


def test_list_goes_on_over_pages(hub, source):
    """The real Hub has 1,000 entries on a page."""
    files = {f"{i % 7}/{i}.txt": b"%d" % i for i in range(2345)}
    hub.repository(DATASET).commit(files)

    assert set(files) == {e.path for e in source().entries()}
    assert 3 == len(hub.requests("hub GET .*/tree/"))


def test_another_link_does_not_end_the_list(hub, source):
    """As a proxy's own, on a line of its own."""
    hub.page, hub.also = 5, {"Link": '<http://proxy/help>; rel="help"'}

    assert set(FILES) == {e.path for e in source().entries()}


def test_pages_are_asked_for_on_the_hub_whatever_the_link_says(hub, source):
    """A mirror may pass on links to the Hub that it mirrors; the token must not go there."""
    files = {f"{i}": b"" for i in range(1500)}
    hub.repository(DATASET).commit(files)
    hub.tokens[TOKEN] = set()
    with Hub() as other:
        address, hub.endpoint = hub.endpoint, other.endpoint
        opened = HubSource("org/name", {"HF_ENDPOINT": address, "ACCESS_TOKEN": TOKEN})

        assert set(files) == {e.path for e in opened.entries()}
        assert [] == other.log


def test_everything_comes_from_the_commit_that_was_listed(repo, source):
    """The branch moves between the list and the reading."""
    opened = source()
    listed = list(opened.entries())
    before = repo.refs["main"]
    repo.commit({"a.txt": b"another"})

    assert before == opened.revision
    assert FILES == {e.path: read(opened, e, 0, e.size) for e in listed}


@pytest.mark.parametrize("revision", ["v1", "feature%2Fx", "refs/pr/1", "commit"])
def test_revision_is_a_tag_a_branch_a_reference_or_a_commit(repo, source, contents, revision):
    commit = repo.commit({"old": b"old"}, branch="v1")
    repo.refs |= {"feature/x": commit, "refs/pr/1": commit}
    opened = source(f"org/name@{commit if revision == 'commit' else revision}")

    assert {"old": b"old"} == contents(opened)
    assert commit == opened.revision


def test_commit_needs_no_question(hub, repo, source):
    list(source(f"org/name@{repo.refs['main']}").entries())

    assert [] == hub.requests("/revision/")


def test_moved_repository_is_found_under_its_new_name(hub, source, contents):
    """Only the first question is redirected, not one for each file."""
    hub.moved["datasets/old/name"] = DATASET

    assert FILES == contents(source("old/name"))
    assert 1 == len(hub.requests("old/name"))


@pytest.mark.parametrize("path", ["big.bin", "data/deep/b.bin"])
def test_ranges_are_slices(source, path):
    opened = source()
    entry = entry_of(opened, path)
    size = entry.size
    cuts = [(0, 1), (0, size - 1), (size - 1, size), (1000, 1000), (777, 9999), (size // 2, size), (0, size)]

    assert [FILES[path][a:b] for a, b in cuts] == [read(opened, entry, a, b) for a, b in cuts]


def test_large_file_is_located_once(hub, source):
    """Eight threads that read its ranges ask the Hub once between them."""
    opened = source()
    entry = entry_of(opened, "big.bin")
    step = 256 << 10
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda a: read(opened, entry, a, a + step), range(0, entry.size, step))

        assert b"".join(parts) == BIG
    assert 1 == len(hub.requests("HEAD .*/resolve/"))


def test_small_file_is_one_request(hub, source):
    opened = source()
    read(opened, entry_of(opened, "a.txt"), 0, 5)

    assert ["GET"] == [r.method for r in hub.requests("/resolve/")]


@pytest.mark.parametrize("redirects", [False, True], ids=["direct", "redirected"])
def test_token_goes_to_the_hub_only(hub, repo, source, contents, redirects):
    hub.tokens[TOKEN] = {DATASET}
    hub.small_redirects = redirects
    repo.private = True
    opened = source(ACCESS_TOKEN=f" {TOKEN}\n")
    assert FILES == contents(opened)
    listed = {e.path: e for e in opened.entries()}
    for path in ["big.bin", "data/deep/b.bin"]:
        assert FILES[path][10:20] == read(opened, listed[path], 10, 20)

    assert {f"Bearer {TOKEN}"} == {
        r.headers.get("Authorization", r.headers.get("authorization")) for r in hub.requests("hub")
    }
    at_cdn = hub.requests("cdn")
    assert at_cdn
    assert [] == [r for r in at_cdn if "authorization" in {name.lower() for name in r.headers}]


def test_tokens_in_the_order_of_their_names(hub, repo, source, contents, tmp_path):
    hub.tokens[TOKEN] = {DATASET}
    repo.private = True

    assert FILES == contents(source(ACCESS_TOKEN=TOKEN, HF_TOKEN="hf_wrong"))
    assert FILES == contents(source(ACCESS_TOKEN="", HF_TOKEN=TOKEN))
    assert FILES == contents(source(HUGGING_FACE_HUB_TOKEN=TOKEN))
    (tmp_path / "token").write_text(TOKEN)
    assert FILES == contents(source(HF_HOME=str(tmp_path)))


def test_offline_nothing_is_asked(hub, source):
    for value in ["1", "ON", "true", "Yes"]:
        with pytest.raises(FatalError, match="HF_HUB_OFFLINE") as caught:
            list(source(HF_HUB_OFFLINE=value).entries())
        assert "hub-offline" == caught.value.code

    assert [] == hub.log
    assert list(source(HF_HUB_OFFLINE="0").entries())


def test_offline_is_told_by_the_variable_that_says_so(source):
    """An image may have set the one for good; the other wins over it, as for huggingface_hub."""
    with pytest.raises(OfflineError, match=r"^TRANSFORMERS_OFFLINE is set, and hf://datasets/org/name ") as caught:
        list(source(HF_HUB_OFFLINE="", TRANSFORMERS_OFFLINE="1").entries())
    assert caught.value.hint.startswith("unset TRANSFORMERS_OFFLINE, or ")

    assert list(source(HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="1").entries())


@pytest.mark.parametrize("more", [{"verify": "full"}, {"checksums": {"a.txt": f"sha256:{'0' * 64}"}}], ids=str)
def test_offline_nothing_is_asked_for_what_is_damaged(hub, source, tmp_path, more):
    """A file that is there and not whole, or another than the user's own list says, is named."""
    bring(source(), tmp_path)
    before = (tmp_path / "a.txt").stat()
    (tmp_path / "a.txt").write_bytes(b"aleph")
    os.utime(tmp_path / "a.txt", ns=(before.st_mtime_ns, before.st_mtime_ns))
    asked = len(hub.log)

    with pytest.raises(OfflineError) as caught:
        bring(source(HF_HUB_OFFLINE="1"), tmp_path, **more)

    assert "hub-offline" == caught.value.code
    assert "HF_HUB_OFFLINE is set, and a.txt is damaged here, or another than is wanted" == caught.value.message
    assert asked == len(hub.log)
    assert b"aleph" == (tmp_path / "a.txt").read_bytes()


@pytest.mark.parametrize("size", ["5, 5", "none"])
def test_a_size_that_is_no_number_is_no_change(hub, source, size):
    """What arrives is counted anyway."""
    entry = entry_of(source(), "a.txt")
    hub.fault("/resolve/", times=2, status=200, body=b"alpha", headers={"Content-Length": size, "Connection": "close"})

    assert b"alpha" == read(source(), entry, 0, 5)


@pytest.mark.parametrize("more", [{}, {"AWS_CA_BUNDLE": "/of/an/s3/server"}], ids=["alone", "beside-s3"])
def test_authority_of_ones_own(contents, tmp_path, more):
    """Mirrors have their own; it is trusted once it is named, and nothing before; an S3 server's is no matter."""
    with Hub(tls=server_context(tmp_path / "both.pem")) as hub:
        hub.repository(DATASET).commit(FILES)
        opened = HubSource(
            "org/name", {"HF_ENDPOINT": hub.endpoint, "SSL_CERT_FILE": str(tmp_path / "both.pem"), **more}
        )

        assert FILES == contents(opened)
        assert BIG[5:9] == read(opened, entry_of(opened, "big.bin"), 5, 9)
        with pytest.raises(FatalError) as caught:
            list(HubSource("org/name", {"HF_ENDPOINT": hub.endpoint}).entries())
    assert "certificate-refused" == caught.value.code


def test_many_located_files_are_forgotten_again(hub, source):
    files = {f"{i}.bin": Blob.of(b"%d" % i * 100, lfs=True) for i in range(100)}
    hub.repository(DATASET).commit(files)
    opened = source()

    assert all(files[e.path].data[1:50] == read(opened, e, 1, 50) for e in opened.entries())
    assert len(opened._located) <= 64


def test_nothing_is_left_open(source):
    """Giving up an iterator in the middle does not hold up the next one."""
    opened = source()
    entry = entry_of(opened, "big.bin")
    for _ in range(40):
        next(iter(opened.read(entry, 0, entry.size)))

    assert BIG == read(opened, entry, 0, entry.size)
    assert threading.active_count() < 200
