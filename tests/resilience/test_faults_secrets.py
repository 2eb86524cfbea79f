"""Keys appear nowhere: not in the output, not in arguments that everybody may read, not in what is left."""

import os
from pathlib import Path

import pytest
from agent_process import KEY_ID, SECRET
from breakage import Answer, Fault, s3_error

pytestmark = pytest.mark.lab

TOKEN = "sessionTokenThatIsNobodysBusiness0123456789"
REPEATED = f"<Error><Code>Odd</Code><Message>key {KEY_ID} {SECRET} {TOKEN}</Message></Error>".encode()
FAULTS = {
    "none": [],
    "reset": [{"match": "GET .*big.bin", "reset_after": 1 << 20}],
    "denied": [{"match": "GET .*big.bin", "answer": s3_error(403, "AccessDenied"), "times": None}],
    # What a server says is repeated for the user, and some servers repeat what they were sent.
    "repeated": [{"match": "list-type", "answer": Answer(403, REPEATED), "times": None}],
    "wrong-keys": [{"match": "list-type", "answer": s3_error(403, "InvalidAccessKeyId"), "times": None}],
    "stopped": [{"match": "GET .*big.bin", "stall_after": 1 << 20, "times": None}],
}


@pytest.mark.parametrize("name", FAULTS)
def test_no_key_is_ever_told(agent, destination, proxy, name):
    """Neither the key's id nor the secret nor the token."""
    proxy.add(*(Fault(**fault) for fault in FAULTS[name]))

    run = agent("--timeout", "2" if name == "stopped" else "30", SESSION_TOKEN=TOKEN, AWS_SESSION_TOKEN=TOKEN)
    arguments = b""
    while run.running and not arguments.count(b"trainer_agent") > 1:
        arguments = b"".join(_arguments(run.process.pid))
    run.finish()

    everything = run.output.encode() + arguments + b"".join(_left(destination))
    assert [secret for secret in (KEY_ID, SECRET, TOKEN) if secret.encode() in everything] == []
    assert arguments.count(b"trainer_agent") > 1
    assert name == "none" or "code" in run.output


def _arguments(pid):
    """Yield the command lines of a process and its children."""
    for task in [pid, *_children(pid)]:
        try:
            yield Path(f"/proc/{task}/cmdline").read_bytes()
        except OSError:  # it has ended
            continue


def _children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _left(destination):
    """Yield names and contents of every file, except for the large ones that came."""
    for directory, _, names in os.walk(destination):
        for name in names:
            path = Path(directory) / name
            yield os.fsencode(path)
            if path.stat().st_size < 1 << 20:
                yield path.read_bytes()
