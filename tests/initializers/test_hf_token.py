"""Where the Hub's token is from."""

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.initializers import hf_token

TOKEN = "hf_aVerySecretToken"


def kept(path, text=f"{TOKEN}\n"):
    """Put a token where it is looked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path), TOKEN


def test_without_any_there_is_none(tmp_path):
    assert ("", "") == hf_token.find({"HOME": str(tmp_path), "ACCESS_TOKEN": " "})


def test_variables_win_over_the_file(tmp_path):
    kept(tmp_path / ".cache/huggingface/token")
    environ = {"HOME": str(tmp_path), "HUGGING_FACE_HUB_TOKEN": "c"}

    assert ("HUGGING_FACE_HUB_TOKEN", "c") == hf_token.find(environ)
    assert ("HF_TOKEN", "b") == hf_token.find(environ | {"HF_TOKEN": " b\n"})
    assert ("ACCESS_TOKEN", "a") == hf_token.find(environ | {"HF_TOKEN": "b", "ACCESS_TOKEN": "a"})


@pytest.mark.parametrize(
    "variables,place",
    [
        ({}, "home/.cache/huggingface/token"),
        ({"XDG_CACHE_HOME": "{}/xdg"}, "xdg/huggingface/token"),
        ({"XDG_CACHE_HOME": "{}/xdg", "HF_HOME": "~/hf"}, "home/hf/token"),
        ({"HF_HOME": "{}/hf", "HF_TOKEN_PATH": "{}/secrets/hub"}, "secrets/hub"),
    ],
)
def test_file_is_where_huggingface_hub_has_it(tmp_path, variables, place):
    environ = {"HOME": str(tmp_path / "home")} | {k: v.format(tmp_path) for k, v in variables.items()}

    assert kept(tmp_path / place) == hf_token.find(environ)


def test_file_that_cannot_be_read_is_none_unless_it_is_named(tmp_path):
    """As with HOME=/root and another user; one that is not there is none in any case."""
    kept(tmp_path / "file")

    assert ("", "") == hf_token.find({"HOME": str(tmp_path / "file")})
    assert ("", "") == hf_token.find({"HF_TOKEN_PATH": str(tmp_path / "nothing")})
    for path in tmp_path / "file/token", tmp_path:
        with pytest.raises(FatalError) as caught:
            hf_token.find({"HF_TOKEN_PATH": str(path)})
        assert "hub-token-invalid" == caught.value.code
        assert f"HF_TOKEN_PATH={path} cannot be read" == caught.value.message


@pytest.mark.parametrize("text", [f"{TOKEN}\n{TOKEN}", f"HF_TOKEN= {TOKEN}"])
def test_what_is_no_token_is_not_shown(tmp_path, text):
    path, _ = kept(tmp_path / "token", text)
    for environ, name in ({"HF_HOME": str(tmp_path)}, path), ({"ACCESS_TOKEN": text}, "ACCESS_TOKEN"):
        with pytest.raises(FatalError) as caught:
            hf_token.find(environ)
        assert ("hub-token-invalid", f"{name} holds what no token has") == (caught.value.code, caught.value.message)
