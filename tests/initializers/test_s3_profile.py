"""Keys from the files of AWS's own tools."""

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.initializers.http import HttpClient
from trainer_agent.initializers.s3_credentials import choose

FILES = {
    "credentials": "[default]\naws_access_key_id = AKID\naws_secret_access_key = default%secret\n"
    "[other]\naws_access_key_id=AKID2\naws_secret_access_key=other-secret\naws_session_token=token\n",
    "config": "[default]\nregion = eu-west-1\n[profile third]\naws_access_key_id = AKID3\n"
    "aws_secret_access_key = third-secret\n[profile role]\nrole_arn = arn:aws:iam::1:role/x\n",
}


@pytest.fixture
def home(tmp_path):
    (tmp_path / ".aws").mkdir()
    for name, text in FILES.items():
        (tmp_path / ".aws" / name).write_text(text)
    return {"HOME": str(tmp_path)}


def taken(environ):
    """Return the credentials that an environment gives; of a server that is not Amazon's, where no instance has any."""
    return choose(environ, HttpClient(environ), region="us-east-1", foreign=True)()


@pytest.mark.parametrize(
    "environ, secret, token",
    [
        ({}, "default%secret", ""),
        ({"AWS_PROFILE": "other"}, "other-secret", "token"),
        ({"AWS_DEFAULT_PROFILE": "third"}, "third-secret", ""),
        ({"ACCESS_KEY_ID": "A", "SECRET_ACCESS_KEY": "of-the-environment"}, "of-the-environment", ""),
    ],
)
def test_a_profile(home, environ, secret, token):
    found = taken(home | environ)

    assert (secret, token) == (found.secret_key, found.token)


def test_files_elsewhere(home, tmp_path):
    (tmp_path / "keys").write_text("[default]\naws_access_key_id=A\naws_secret_access_key=elsewhere\n")

    assert "elsewhere" == taken(home | {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys")}).secret_key
    assert taken({"HOME": str(tmp_path / "nobody")}) is None


@pytest.mark.parametrize(
    "name, why", [("role", "has role_arn, which is not read"), ("default ", ""), ("nobody", "has no keys")]
)
def test_a_profile_that_cannot_serve(home, name, why):
    """Nobody else is asked in its stead: that would be another account."""
    if not why:
        assert "default%secret" == taken(home | {"AWS_PROFILE": name}).secret_key
        return
    with pytest.raises(FatalError) as caught:
        taken(home | {"AWS_PROFILE": name})

    assert ("profile-unusable", f"AWS_PROFILE={name} {why}") == (caught.value.code, caught.value.message)


def test_a_home_of_somebody_else_says_nothing(home):
    """As with HOME=/root and another user; one that is named and there must be readable."""
    credentials = f"{home['HOME']}/.aws/credentials"

    assert taken({"HOME": credentials}) is None  # a file, so that nothing in it can be opened
    assert "default%secret" == taken(home | {"AWS_CONFIG_FILE": "/no/such/file"}).secret_key
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        with pytest.raises(FatalError, match="cannot be read as a file of AWS profiles"):
            taken(home | {name: f"{credentials}/x"})


def test_a_file_that_is_none_is_not_shown(home, tmp_path):
    (tmp_path / ".aws" / "credentials").write_text("aws_secret_access_key = hunter22")

    with pytest.raises(FatalError) as caught:
        taken(home)

    assert caught.value.code == "profile-unusable"
    assert "hunter22" not in f"{caught.value.message} {caught.value.__cause__}"
