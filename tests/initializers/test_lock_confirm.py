"""Before anything is put in place the claim is looked at once more: it may have become another agent's meanwhile."""

import pytest
from claiming import FOREIGN, PATIENT, claim, names_in, read, write

from trainer_agent.errors import RetryError
from trainer_agent.initializers.lock import LEASE, LOCK, NoClaim

pytestmark = pytest.mark.lab


def test_whoever_confirms_a_claim_looks_at_the_lease_itself(directory):
    """The next renewal may be seconds away."""
    with claim(directory, times=PATIENT) as ours:
        ours.confirm()
        before = read(directory)
        write(directory, FOREIGN)
        with pytest.raises(RetryError, match="another agent has taken over"):
            ours.confirm()

    assert (2, FOREIGN) == (before["n"], read(directory))


@pytest.mark.parametrize("noticed", [False, True], ids=["before it is written anew", "after that"])
def test_whoever_finds_no_lease_has_no_claim_to_confirm(directory, noticed):
    """Another agent may have taken over and finished; what is there now is no longer what we looked at."""
    with claim(directory, times=PATIENT) as ours:
        (directory / LEASE).unlink()
        if noticed:
            ours.renew_if_ours()
            ours.check()
        with pytest.raises(RetryError) as caught:
            ours.confirm()

    assert ("destination-lost", {LOCK}) == (caught.value.code, names_in(directory))


def test_a_volume_that_was_away_is_still_ours(directory):
    with claim(directory, times=PATIENT) as ours:
        away = directory.rename(directory.with_name("away"))
        with pytest.raises(FileNotFoundError):
            ours.confirm()
        away.rename(directory)
        ours.confirm()


def test_without_a_claim_nothing_is_confirmed():
    """The reason was found when it was tried."""
    reason = RetryError("no-space", "it is full")
    NoClaim(reason).check()
    with pytest.raises(RetryError) as caught:
        NoClaim(reason).confirm()

    assert reason is caught.value
