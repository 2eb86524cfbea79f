"""s3:// against a server that does what no real one does on request: the list, the bucket and its region."""

import json
import subprocess
import sys

import pytest
from hostile_s3 import Fault, HostileS3, Thing

from trainer_agent.errors import FatalError
from trainer_agent.initializers import TransientError, s3_xml
from trainer_agent.initializers.s3 import S3Source
from trainer_agent.initializers.s3_bucket import Bucket

MANY = 100_000
# Peak memory of the mapping itself: ru_maxrss would count what the parent had before it started us.
LISTER = """
import json, os, re
from trainer_agent.initializers.s3 import S3Source
environ = json.loads(os.environ["SOURCE"])
sizes = [e.size for e in S3Source("bucket/many", environ).entries()]
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(json.dumps([len(sizes), sum(sizes), peak]))
"""


def paths(server, rest, **environ):
    """Return the paths that a source lists."""
    return [e.path for e in S3Source(rest, {**server.environ, **environ}, patience_s=0.0).entries()]


@pytest.mark.parametrize(
    "rest,expected",
    [
        ("bucket/dir", ["/slash", "a", "a/b", "a//b"]),
        ("bucket/dir/", ["/slash", "a", "a/b", "a//b"]),
        ("bucket/dir//", ["slash"]),
        ("bucket//lead", ["x"]),
        ("bucket//", ["lead/x"]),
        ("bucket/di", []),
        ("bucket/no//", []),
        ("bucket/q?uery=1&a", ["f"]),
        ("bucket/%20", ["f"]),
        ("bucket/dir2", ["x"]),
        ("bucket/dir-old/x", ["x"]),
    ],
)
def test_prefixes_are_literal_paths(rest, expected):
    """One slash at the end may be left out; every other one, `?` and `%` belong to the keys."""
    keys = ["dir/a", "dir/a/b", "dir/a//b", "dir//slash", "dir/", "dir-old/x", "dir2/x", "/lead/x", "q?uery=1&a/f"]
    with HostileS3(dict.fromkeys([*keys, "%20/f"], b"")) as server:
        assert sorted(paths(server, rest)) == sorted(expected)


def test_pages_are_put_together():
    """Also where the last one is full."""
    with HostileS3({f"{i:02}": b"" for i in range(20)}, page_keys=5) as server:
        assert paths(server, "bucket") == [f"{i:02}" for i in range(20)]
        assert len(server.seen) == 4


def test_a_server_of_the_first_version_goes_on_behind_a_key():
    """It takes a question for the second version for one of its own, and gives no token."""
    with HostileS3({f"d/{i:02} +%20/ü": b"" for i in range(20)}, page_keys=5) as server:
        server.first_version = True

        assert paths(server, "bucket/d") == [f"{i:02} +%20/ü" for i in range(20)]
        assert len(server.seen) == 4


def test_keys_below_another_prefix_are_left_out():
    """A server that ignores `prefix` does not give us what nobody asked for."""
    listing = b"<ListBucketResult><Contents><Key>other/x</Key><Size>1</Size></Contents></ListBucketResult>"
    with HostileS3({"d": b"one"}) as server:
        server.faults["list"] = [Fault(200, body=listing)]
        assert paths(server, "bucket/d") == ["d"]


def test_bytes_under_the_name_of_a_directory_are_refused():
    """No file can have this name, and leaving it out would lose data."""
    with HostileS3({"d/x/": b"bytes", "d/y/": b""}) as server, pytest.raises(FatalError) as caught:
        paths(server, "bucket/d")

    assert caught.value.code == "unsafe-name"
    assert caught.value.message == "the source has 5 bytes under 'd/x/', which is no file"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<ListBucketResult><Contents><Key>a</Key>",
        b"<ListBucketResult><Contents><Key>a</Key><Size>many</Size></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
    ],
)
def test_a_list_that_makes_no_sense_is_worth_a_retry(body):
    """It was cut, or the server is confused; an incomplete list must never pass for a whole one."""
    with pytest.raises(TransientError, match="http://s3/b answers with"):
        s3_xml.page(body, url="http://s3/b")


def test_an_error_that_comes_with_200_is_worth_a_retry():
    """Amazon's service may fail after it has begun to answer; its own clients take that for a 500."""
    body = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InternalError</Code><Message>m</Message></Error>'
    with HostileS3({"d/f": b""}) as server:
        server.faults["list"] = [Fault(200, body=body)]
        with pytest.raises(TransientError, match=rf"{server.endpoint}/bucket answers 200 \(InternalError\)"):
            paths(server, "bucket/d")

        assert ["f"] == paths(server, "bucket/d")


@pytest.mark.parametrize(
    "more",
    [
        b"<NextContinuationToken>t</NextContinuationToken>",
        b"<Contents><Key>a</Key><Size>1</Size></Contents>",
    ],
    ids=["token", "marker"],
)
def test_a_list_that_goes_round_in_circles(more):
    """The same token or key twice would list for ever."""
    body = b"<ListBucketResult><IsTruncated>true</IsTruncated>" + more + b"</ListBucketResult>"
    with HostileS3() as server:
        server.faults["list"] = [Fault(200, body=body)] * 3
        with pytest.raises(TransientError, match="goes round in circles"):
            paths(server, "bucket")


def test_a_console_is_not_s3():
    """Its port answers 200 with a web page."""
    with HostileS3() as server:
        server.faults["list"] = [Fault(200, body=b"<!doctype html><html><body>welcome</html>")]
        with pytest.raises(FatalError) as caught:
            paths(server, "bucket")

    assert caught.value.code == "endpoint-invalid"
    assert caught.value.message == (
        f"{server.endpoint}/bucket does not answer as S3 does: b'<!doctype html><html><body>wel'…"
    )


def test_entities_do_not_explode():
    """A kilobyte that unfolds to gigabytes is refused by expat."""
    layers = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    bomb = (
        f'<!DOCTYPE ListBucketResult [<!ENTITY a0 "{"x" * 1000}">{layers}]><ListBucketResult>&a11;</ListBucketResult>'
    )

    with pytest.raises(TransientError):
        s3_xml.page(bomb.encode(), url="http://s3/b")


def test_a_busy_list_is_tried_again():
    """Retry-After is obeyed."""
    with HostileS3({"a": b""}) as server:
        server.faults["list"] = [Fault(503, "SlowDown", headers={"Retry-After": "0"}), Fault(500)]
        source = S3Source("bucket", server.environ, patience_s=5.0)

        assert [e.path for e in source.entries()] == ["a"]
        assert len(server.seen) == 3


@pytest.mark.parametrize(
    "fault",
    [
        Fault(301, "PermanentRedirect", headers={"x-amz-bucket-region": "eu-central-1"}),
        Fault(400, "AuthorizationHeaderMalformed", headers={"x-amz-bucket-region": "eu-central-1"}),
        Fault(400, body=b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region></Error>"),
    ],
)
def test_the_bucket_s_region_is_followed(fault):
    """From the first answer on, both for the list and for the bytes."""
    with HostileS3({"a": b"1"}) as server:
        server.faults["list"] = [fault]
        source = S3Source("bucket", server.environ, patience_s=0.0)
        (entry,) = source.entries()

        assert b"".join(map(bytes, source.read(entry, 0, 1))) == b"1"
        regions = [seen.headers["authorization"].split("/")[2] for seen in server.seen]
        assert regions == ["us-east-1", "eu-central-1", "eu-central-1"]


def test_a_region_that_is_none_is_not_followed():
    """It becomes part of an address."""
    with HostileS3() as server:
        server.faults["list"] = [Fault(301, headers={"x-amz-bucket-region": "x.evil.test/"})]
        with pytest.raises(FatalError, match="301"):
            paths(server, "bucket")
        assert len(server.seen) == 1


COM = ".amazonaws.com"
AMAZON = f"https://s3{COM}"


@pytest.mark.parametrize(
    "name,environ,url",
    [
        ("data", {}, "https://data.s3.us-east-1.amazonaws.com/k"),
        ("da.ta", {}, "https://s3.us-east-1.amazonaws.com/da.ta/k"),
        ("data", {"REGION": "cn-north-1"}, "https://data.s3.cn-north-1.amazonaws.com.cn/k"),
        (
            "data",
            {"AWS_REGION": "eu-west-1", "AWS_S3_ADDRESSING_STYLE": "path"},
            "https://s3.eu-west-1.amazonaws.com/data/k",
        ),
        ("data", {"ENDPOINT": f"{AMAZON}/", "REGION": "eu-west-1"}, "https://data.s3.eu-west-1.amazonaws.com/k"),
        ("data", {"ENDPOINT": "https://s3.eu-west-1.amazonaws.com"}, "https://data.s3.eu-west-1.amazonaws.com/k"),
        ("data", {"ENDPOINT": "https://s3-us-gov-west-1.amazonaws.com"}, f"https://data.s3.us-gov-west-1{COM}/k"),
        ("data", {"ENDPOINT": f"https://s3.dualstack.eu-west-1{COM}"}, f"https://s3.dualstack.eu-west-1{COM}/data/k"),
        ("data", {"ENDPOINT": f"https://s3-accelerate{COM}"}, f"https://s3-accelerate{COM}/data/k"),
        ("data", {"ENDPOINT": f"s3.eu-west-1{COM}"}, f"https://data.s3.eu-west-1{COM}/k"),
        ("data", {"ENDPOINT": f"https://data.s3.eu-west-1{COM}"}, f"https://data.s3.eu-west-1{COM}/k"),
        ("data", {"AWS_ENDPOINT": "https://data.r2.test"}, "https://r2.test/data/k"),
        ("data", {"REGION": "eusc-de-east-1"}, "https://data.s3.eusc-de-east-1.amazonaws.eu/k"),
        (
            "data",
            {"ENDPOINT": "https://s3.eusc-de-east-1.amazonaws.eu"},
            "https://data.s3.eusc-de-east-1.amazonaws.eu/k",
        ),
        ("data", {"ENDPOINT": "https://s3.c2s.ic.gov"}, "https://s3.c2s.ic.gov/data/k"),
        ("data", {"ENDPOINT": "http://minio:9000/"}, "http://minio:9000/data/k"),
        ("data", {"AWS_ENDPOINT_URL": "https://x/base"}, "https://x/base/data/k"),
        ("data", {"AWS_ENDPOINT_URL_S3": "https://a", "AWS_ENDPOINT_URL": "https://b"}, "https://a/data/k"),
        ("data", {"ENDPOINT": "https://s3.test", "AWS_S3_ADDRESSING_STYLE": "virtual"}, "https://data.s3.test/k"),
    ],
)
def test_addresses(name, environ, url):
    """Amazon's buckets have hosts of their own, unless a dot would break the certificate; others are paths."""
    assert Bucket(name, environ).url("k") == url


def test_amazons_service_by_name_is_none_that_a_bucket_is_bound_to():
    """Kubeflow's guides give it; it redirects for buckets of other regions, where the bucket's own host does not."""
    bucket = Bucket("data", {"ENDPOINT": AMAZON})
    bucket.region = "eu-central-1"  # as a redirect says

    assert f"https://data.s3.eu-central-1{COM}/k" == bucket.url("k")


@pytest.mark.parametrize(
    "environ,code,named",
    [
        ({"ENDPOINT": "minio:9000"}, "endpoint-invalid", "ENDPOINT"),
        ({"AWS_ENDPOINT_URL": "https://user:hunter22@host"}, "endpoint-invalid", "AWS_ENDPOINT_URL"),
        ({"AWS_ENDPOINT_URL": "https://:hunter22@host"}, "endpoint-invalid", "AWS_ENDPOINT_URL"),
        ({"ENDPOINT": "http://host:port"}, "endpoint-invalid", "ENDPOINT"),
        ({"AWS_S3_ADDRESSING_STYLE": "virtuel"}, "style-invalid", "AWS_S3_ADDRESSING_STYLE='virtuel'"),
    ],
)
def test_settings_that_make_no_sense(environ, code, named):
    """The variable is named; what may be a password is not shown."""
    with pytest.raises(FatalError) as caught:
        Bucket("b", environ)

    assert caught.value.code == code
    assert caught.value.message.startswith(f"{named} is ")
    assert "hunter22" not in caught.value.message


@pytest.mark.parametrize(
    "name,told", [("arn:aws:s3:us-east-1:123456789012:accesspoint", "alias"), ("data--usw2-az1--x-s3", "file:///")]
)
def test_what_is_no_bucket_of_amazon_s(name, told):
    """What to write instead is told; other servers may call a bucket so."""
    with pytest.raises(FatalError) as caught:
        Bucket(name, {})

    assert (caught.value.code, told in caught.value.hint) == ("storage-uri-invalid", True)
    assert name in caught.value.message
    Bucket(name, {"ENDPOINT": "http://minio:9000"})


def test_no_bucket_at_all():
    """As where a variable in the URI is empty; a service would list its buckets."""
    with pytest.raises(FatalError) as caught:
        S3Source("/data", {})

    assert ("storage-uri-invalid", "STORAGE_URI=s3:///… names no bucket") == (caught.value.code, caught.value.message)


def test_google_is_asked_for_what_is_stored():
    """It unpacks for others, which have neither the listed size nor its checksum; the header is not signed there."""
    with HostileS3({"d/1.gz": Thing(b"packed")}) as server:
        environ = server.environ | {"ENDPOINT": "http://storage.googleapis.com", "HTTP_PROXY": server.endpoint}
        source = S3Source("bucket/d", environ, patience_s=0.0)
        (entry,) = source.entries()

        assert b"packed" == b"".join(map(bytes, source.read(entry, 0, 6)))
        listed, read = server.seen
    assert ("identity", "gzip") == (listed.headers["accept-encoding"], read.headers["accept-encoding"])
    assert "accept-encoding" not in read.headers["authorization"]


@pytest.mark.lab
def test_a_hundred_thousand_objects_need_little_memory():
    """Page by page: less than 120 MB at the peak."""
    thing = Thing(b"x")
    with HostileS3({f"many/{i:06}/part-00000-of-00001.parquet": thing for i in range(MANY)}) as server:
        done = subprocess.run(
            [sys.executable, "-c", LISTER],
            env={"SOURCE": json.dumps(server.environ)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    count, size, peak_kib = json.loads(done.stdout)

    assert (count, size) == (MANY, MANY)
    assert peak_kib < 120 * 1024
