"""Keys from the files of AWS's own tools, as Kubeflow's initializer and boto3 read them."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_agent.errors import FatalError
from trainer_agent.initializers.s3_credentials import Credentials, first

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = ("aws_access_key_id", "aws_secret_access_key")
# Other ways to credentials, which take a tool of AWS's, or another profile.
WAYS = ("role_arn", "credential_process", "sso_session", "sso_start_url", "web_identity_token_file")


def from_profile(environ: Mapping[str, str]) -> Credentials | None:
    """
    Return the keys of AWS_PROFILE, or of the profile `default`; None where no file speaks of it.

    Raises:
        FatalError: a file cannot be read, or the profile that is named has no keys.
    """
    name = first(environ, "AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    section = _section(environ, name or "default")
    if all(section.get(key) for key in KEYS):
        key, secret = (section[key] for key in KEYS)
        return Credentials(f"the AWS profile {name or 'default'}", key, secret, section.get("aws_session_token", ""))
    if not name:
        return None
    way = next((f"has {way}, which is not read" for way in WAYS if way in section), "has no keys")
    hint = "give ACCESS_KEY_ID and SECRET_ACCESS_KEY, with ROLE_ARN for a role, or unset AWS_PROFILE"
    raise FatalError("profile-unusable", f"AWS_PROFILE={name} {way}", hint=hint)


def _section(environ: Mapping[str, str], name: str) -> Mapping[str, str]:
    """Return what both files say of a profile; that of the credentials wins."""
    files = (("AWS_CONFIG_FILE", "config", f"profile {name}"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name))
    found: dict[str, str] = {}
    for variable, usual, title in files:
        parsed = _parsed(environ, variable, usual)
        for wanted in (title, name) if name == "default" else (title,):
            if parsed.has_section(wanted):
                found |= {key: value.strip() for key, value in parsed.items(wanted)}
    return found


def _parsed(environ: Mapping[str, str], variable: str, usual: str) -> configparser.RawConfigParser:
    """Return a file's sections; none of one that is not there, or in somebody else's home."""
    parsed = configparser.RawConfigParser(default_section="", strict=False)
    named = first(environ, variable)
    path = Path(named or f"{environ.get('HOME') or '/root'}/.aws/{usual}")
    try:
        parsed.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, configparser.Error) as error:
        if isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and not named):
            return parsed
        # Without `from`: the line that cannot be read may be a key.
        hint = "mount it so that this user may read it, or give ACCESS_KEY_ID and SECRET_ACCESS_KEY"
        raise FatalError("profile-unusable", f"{path} cannot be read as a file of AWS profiles", hint=hint) from None
    return parsed
