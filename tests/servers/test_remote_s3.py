"""The server that behaves like a bucket far away."""

import http.client
import time
import xml.etree.ElementTree as ET

import pytest
from remote_s3 import Object, RemoteS3, read_directory

NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"
BODY = bytes(range(256)) * 4096


@pytest.fixture
def objects(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a & b.bin").write_bytes(BODY)
    for number in range(1001):
        (tmp_path / f"{number:04}").write_bytes(b"")
    return read_directory(tmp_path)


def ask(server, target, method="GET", **headers):
    connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def test_an_answer_waits_for_its_first_byte_and_flows_no_faster_than_the_cap(objects):
    with RemoteS3(objects, latency_s=0.05, bytes_per_s=10e6) as server:
        began = time.monotonic()
        ask(server, "/bucket/0000", "HEAD")
        latency_s = time.monotonic() - began
        began = time.monotonic()
        _, _, body = ask(server, "/bucket/data/a%20%26%20b.bin")
        took_s = time.monotonic() - began
    assert body == BODY
    assert latency_s >= 0.05
    # The first 256 KiB of the 1 MiB leave at once.
    assert took_s >= 0.05 + 0.75 * len(BODY) / 10e6


def test_a_range_is_a_range(objects):
    with RemoteS3(objects, latency_s=0) as server:
        status, headers, body = ask(server, "/bucket/data/a%20%26%20b.bin", Range="bytes=1000-1999")
        assert (206, "bytes 1000-1999/1048576", BODY[1000:2000]) == (status, headers["Content-Range"], body)
        status, headers, body = ask(server, "/bucket/data/a%20%26%20b.bin", Range="bytes=1048000-")
        assert (206, "bytes 1048000-1048575/1048576", BODY[1048000:]) == (status, headers["Content-Range"], body)


def test_another_version_and_a_missing_object_are_refused(objects):
    with RemoteS3(objects, latency_s=0) as server:
        etag = objects["0000"].etag
        statuses = [ask(server, "/bucket/0000", **{"If-Match": f'"{tag}"'})[0] for tag in (etag, "another")]
        assert [200, 412] == statuses
        assert ask(server, "/bucket/none")[0] == 404


def test_the_checksum_is_for_who_asks_and_for_all_of_the_object(objects):
    path = objects["0000"].path
    asked = {"x-amz-checksum-mode": "ENABLED"}
    with RemoteS3({"key": Object(path, 0, "etag", "AAAAAAAAAAA=")}, latency_s=0) as server:
        found = [ask(server, "/b/key", **h)[1] for h in (asked, {}, {**asked, "Range": "bytes=0-0"})]
    assert ["AAAAAAAAAAA=", None, None] == [headers["x-amz-checksum-crc64nvme"] for headers in found]


def test_a_listing_comes_in_pages(objects):
    with RemoteS3(objects, latency_s=0) as server:
        keys, token = [], ""
        for _ in range(2):
            page = ET.fromstring(ask(server, f"/bucket?list-type=2{token}")[2])
            keys.append([key.text for key in page.iter(f"{NAMESPACE}Key")])
            token = f"&continuation-token={page.findtext(f'{NAMESPACE}NextContinuationToken')}"
        assert [1000, 2] == [len(page) for page in keys]
        assert list(objects) == [key for page in keys for key in page]
        page = ET.fromstring(ask(server, "/bucket/?list-type=2&prefix=data/")[2])
        assert ["data/a & b.bin"] == [key.text for key in page.iter(f"{NAMESPACE}Key")]
