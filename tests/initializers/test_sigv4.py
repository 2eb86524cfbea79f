"""Signature Version 4, against what AWS publishes; moto and rclone check the rest in test_s3.py."""

from datetime import UTC, datetime

import pytest

from trainer_agent.initializers.s3_credentials import Credentials
from trainer_agent.initializers.sigv4 import quoted, sign

# The examples of docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
EXAMPLE = Credentials("the documentation", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
NOW = datetime(2013, 5, 24, tzinfo=UTC)
HOST = "https://examplebucket.s3.amazonaws.com"


def signed(url, *, method="GET", headers=None, credentials=EXAMPLE):
    return sign(credentials, method, url, headers=headers or {}, region="us-east-1", now=NOW)


@pytest.mark.parametrize(
    "url,headers,signature",
    [
        (
            f"{HOST}/test.txt",
            {"Range": "bytes=0-9"},
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (f"{HOST}/?lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (f"{HOST}/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
    ids=["get object", "get lifecycle", "list objects"],
)
def test_the_examples_of_amazon(url, headers, signature):
    """Three published requests have the published signatures."""
    names = ";".join(sorted(["host", "x-amz-content-sha256", "x-amz-date", *map(str.lower, headers)]))

    assert signed(url, headers=headers)["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={names},Signature={signature}"
    )


def test_a_query_is_signed_in_order():
    """However the address orders its parameters."""
    assert signed(f"{HOST}/?max-keys=2&prefix=J") == signed(f"{HOST}/?prefix=J&max-keys=2")


def test_the_scheme_s_own_port_is_not_part_of_the_host():
    """Clients do not send it, so it must not be signed."""
    assert signed(f"{HOST}/x") == signed(f"{HOST}:443/x")
    assert signed(f"{HOST}/x") != signed(f"{HOST}:8443/x")


def test_a_session_token_is_sent_and_signed():
    """Temporary credentials need it."""
    temporary = Credentials("a role", EXAMPLE.access_key, EXAMPLE.secret_key, "the-token")

    headers = signed(f"{HOST}/x", credentials=temporary)

    assert headers["x-amz-security-token"] == "the-token"
    assert ";x-amz-security-token," in headers["Authorization"]


def test_nobody_signs_nothing():
    """Public buckets are read without a signature."""
    assert signed(f"{HOST}/x", headers={"Range": "bytes=0-9"}, credentials=None) == {"Range": "bytes=0-9"}


def test_encoding_is_that_of_s3():
    """Only letters, digits and -._~ stay."""
    assert quoted("aZ0-._~ +%/ü*'()!") == "aZ0-._~%20%2B%25%2F%C3%BC%2A%27%28%29%21"
    assert quoted("a/b\udcff", safe="/") == "a/b%FF"
