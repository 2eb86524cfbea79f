"""What somebody may have left where a file of our own goes."""

import os
import stat

# name: function of the path and of a directory elsewhere that holds `file`
LINKS = {
    "a link to a file": lambda path, elsewhere: path.symlink_to(elsewhere / "file"),
    "a link to a directory": lambda path, elsewhere: path.symlink_to(elsewhere),
    "a dangling link": lambda path, elsewhere: path.symlink_to(elsewhere / "new"),
    "a link to itself": lambda path, elsewhere: path.symlink_to(path),
}
SPECIAL = {
    "a fifo": lambda path, elsewhere: os.mkfifo(path),
    "a socket": lambda path, elsewhere: os.mknod(path, stat.S_IFSOCK | 0o600),
}
NO_FILES = LINKS | SPECIAL | {"a directory": lambda path, elsewhere: path.mkdir()}
NO_DIRECTORIES = LINKS | SPECIAL | {"a file": lambda path, elsewhere: path.write_text("")}


def make_elsewhere(directory):
    """Make a directory that nobody may touch."""
    directory.mkdir()
    (directory / "file").write_text("theirs")
    return directory


def is_untouched(elsewhere):
    """Return whether it is as it was made."""
    return [elsewhere / "file"] == list(elsewhere.iterdir()) and (elsewhere / "file").read_text() == "theirs"
