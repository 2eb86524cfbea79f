"""Put a file into a Xet store that is a directory, and print its hash: `python xet.py local:///DIRECTORY FILE`."""

from __future__ import annotations

import sys


def main() -> None:
    """Upload and print."""
    import hf_xet

    store, file = sys.argv[1:]
    with hf_xet.XetSession().new_upload_commit(endpoint=store) as commit:
        upload = commit.start_upload_file(file)
    print(upload.result().xet_info.hash)


if __name__ == "__main__":
    main()
