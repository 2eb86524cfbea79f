"""What S3 says about an object, and what may be made of it."""

import io
import os

import pytest
from demo import s3_server
from hostile_s3 import crc_header

from trainer_agent.initializers import digests, s3_checksum
from trainer_agent.initializers.s3 import S3Source

ETAG = f"{'a' * 32}-3"
ONE_PART = f"{'a' * 32}-1"
CRC32C, SHA1, SHA256 = b"\1\2\3\4", b"\5" * 20, b"\6" * 32


@pytest.mark.parametrize(
    "headers,expected",
    [
        ({}, ""),
        (crc_header("crc32c", CRC32C), "crc32c:01020304"),
        (crc_header("crc32", CRC32C), "crc32:01020304"),
        (crc_header("crc64nvme", CRC32C * 2), "crc64nvme:0102030401020304"),
        (crc_header("sha1", SHA1), f"sha1:{SHA1.hex()}"),
        (crc_header("sha512", SHA256 * 2), f"sha512:{SHA256.hex() * 2}"),
        (crc_header("md5", CRC32C * 4), f"md5:{CRC32C.hex() * 4}"),
        (crc_header("xxhash64", CRC32C * 2), ""),
        ({**crc_header("sha256", SHA256), **crc_header("crc32c", CRC32C)}, "crc32c:01020304"),
        (crc_header("sha256", SHA256, kind="COMPOSITE"), ""),
        ({"x-amz-checksum-sha256": "BgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgY=-3"}, ""),
        (crc_header("crc32c", CRC32C * 2), ""),
        ({"x-amz-checksum-crc32": "\u00fc"}, ""),
    ],
)
def test_the_cheapest_checksum_of_the_whole_object(headers, expected):
    """Those of parts, and what is none, do not count."""
    assert s3_checksum.of_object(headers, "") == expected


@pytest.mark.parametrize("kind,expected", [("", ""), ("COMPOSITE", ""), ("FULL_OBJECT", "crc32:01020304")])
def test_an_object_of_parts_must_say_that_its_checksum_is_of_the_whole(kind, expected):
    """Without a word it is that of the parts, as on servers of before 2025 and on moto."""
    assert s3_checksum.of_object(crc_header("crc32", CRC32C, kind=kind), ETAG) == expected


@pytest.mark.parametrize(
    "size,parts,expected",
    [
        (25, [10, 10, 5], f"md5-parts:10:{ETAG}"),
        (30, [10, 10, 10], f"md5-parts:10:{ETAG}"),
        (25, [10, 5, 10], f"md5-parts:10,5,10:{ETAG}"),
        (31, [10, 10, 11], f"md5-parts:10,10,11:{ETAG}"),
        (31, [10, 10, 10], ""),
        (20, [10, 10, 0], ""),
        (20, [], ""),
    ],
)
def test_a_multipart_etag_needs_parts_that_add_up(size, parts, expected):
    """Those of a server that does not tell all their sizes give no checksum."""
    assert s3_checksum.of_parts(ETAG, size, parts) == expected


@pytest.mark.parametrize("kind", ["aws:kms", "aws:kms:dsse", "AES256", ""])
@pytest.mark.parametrize(
    "etag,expected",
    [("a" * 32, f"md5:{'a' * 32}"), (ETAG, None), (ONE_PART, None), ("opaque", "")],
)
def test_what_an_answer_says(kind, etag, expected):
    """ETags are made of MD5s, unless a key of KMS encrypts; those of several parts need the sizes of these."""
    headers = {"x-amz-server-side-encryption": kind}

    assert s3_checksum.of_answer(headers, etag, 9) == ("" if kind.startswith("aws:kms") else expected)


@pytest.mark.parametrize(
    "server, expected",
    [
        ("AmazonS3", f"md5-parts:9:{ONE_PART}"),
        ("MinIO/RELEASE.2019-08-14T20-37-41Z", ""),
        ("MinIO", ""),
        ("nginx", None),
    ],
)
def test_an_etag_of_one_part_may_be_random(server, expected):
    """MinIO makes such of uploads without Content-MD5, unless told otherwise; nginx may stand before it."""
    assert expected == s3_checksum.of_answer({"server": server}, ONE_PART, 9)


BIG = os.urandom(9 << 20)
ACCOUNT = {"ACCESS_KEY_ID": "any-key-id", "SECRET_ACCESS_KEY": "any-secret"}


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory):
    """Return a source of BIG, as boto3 uploads it in different ways."""
    import boto3
    from boto3.s3.transfer import TransferConfig

    parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
    with s3_server(tmp_path_factory.mktemp("moto") / "log") as endpoint:
        account = {"aws_access_key_id": ACCOUNT["ACCESS_KEY_ID"], "aws_secret_access_key": ACCOUNT["SECRET_ACCESS_KEY"]}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **account)
        client.create_bucket(Bucket="bucket")
        client.put_object(Bucket="bucket", Key="default", Body=BIG)
        client.put_object(Bucket="bucket", Key="nvme", Body=BIG, ChecksumAlgorithm="CRC64NVME")
        client.put_object(Bucket="bucket", Key="sha256", Body=BIG, ChecksumAlgorithm="SHA256")
        client.upload_fileobj(io.BytesIO(BIG), "bucket", "parts", Config=parts)
        yield S3Source("bucket", {**ACCOUNT, "ENDPOINT": endpoint}, patience_s=0.0)


def test_checksums_of_real_uploads_are_right(uploaded, tmp_path):
    """What the server says is what our own digests find in the same bytes."""
    (tmp_path / "big").write_bytes(BIG)
    said = {entry.key: uploaded.checksum(entry) for entry in uploaded.entries()}
    with (tmp_path / "big").open("rb") as file:
        found = {key: digests.of_file(file.fileno(), checksum, len(BIG)) for key, checksum in said.items()}

    assert found == said
    assert {key: checksum.partition(":")[0] for key, checksum in said.items()} == {
        "default": "crc32",
        "nvme": "crc64nvme",
        "sha256": "sha256",
        "parts": "md5-parts",
    }
