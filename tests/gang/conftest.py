"""What several tests of the gang start from."""

import pytest
from meeting_place import Place


@pytest.fixture
def place():
    """Return a meeting place that is open, and where nobody is."""
    found = Place()
    found.open()
    return found
