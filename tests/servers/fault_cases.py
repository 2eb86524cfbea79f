"""
What goes wrong and what the agent makes of it: the cases of the fault tests and of the table in the documentation.

`python tests/servers/fault_cases.py` prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from breakage import Answer, Fault, s3_error

MIB = 1 << 20
BIG = "^GET /bucket/data/big.bin"
FIVE = "^GET /bucket/data/a/five.bin"
OBJECTS = "^GET /bucket/data/"
LIST = "list-type=2"
# Bytes that the client's libraries held when a connection broke.
HELD = MIB
# Idle connections take over half of what others have to come; what was on its way there already comes twice.
SHARED = 16 * MIB
# Ranges that nobody shares: a byte in the middle of one is sure to come, and what comes twice can be counted.
ALONE = ("--streams", "1")


@dataclass(frozen=True)
class Case:
    """
    One thing that goes wrong.

    Args:
        name: for pytest.
        what, outcome: in words, for the table.
        faults: keyword arguments of the faults; a `Fault` counts, so each test makes its own.
        code: the exit code.
        error: the code in the last line of the log.
        again: most bytes that are fetched twice, beside `shared` ones.
        lacking: what need not be there in the end; None is anything, but nothing wrong.
        within_s: from start to exit, with two seconds to spare for a busy machine.
    """

    name: str
    what: str
    outcome: str
    faults: tuple[dict, ...]
    code: int = 0
    error: str = ""
    again: int = HELD
    args: tuple[str, ...] = ()
    within_s: float = 20.0

    @property
    def shared(self):
        """Bytes of the large file that come twice because connections share its ranges."""
        return 0 if ALONE[0] in self.args else SHARED

    def made(self):
        """Return the faults anew."""
        return [Fault(**fault) for fault in self.faults]


RESUMED = "that range goes on where it ended"
CASES = (
    Case(
        "reset",
        "A connection is reset in the middle of a body",
        RESUMED,
        ({"match": BIG, "reset_after": 20 * MIB + 12_345},),
        args=ALONE,
    ),
    Case(
        "reset-at-once",
        "A connection is reset before the first byte of the body",
        "that range is asked for again",
        ({"match": BIG, "reset_after": 0}, {"match": FIVE, "reset_after": 0}),
    ),
    Case(
        "resets",
        "Every connection is reset after 8 MiB",
        "each range goes on where it ended, however often",
        ({"match": BIG, "reset_after": 8 * MIB, "times": None},),
        args=ALONE,
        again=16 * HELD,
        within_s=30.0,
    ),
    Case("cut", "A body ends early", RESUMED, ({"match": BIG, "cut_after": 30 * MIB + 1},), args=ALONE),
    Case(
        "cut-small",
        "The body of a small file ends early",
        RESUMED,
        ({"match": FIVE, "cut_after": 2 * MIB + 7},),
    ),
    Case(
        "bit",
        "One bit is flipped on the way, in a large file",
        "that file is fetched again",
        ({"match": BIG, "flip": 30 * MIB},),
        args=ALONE,
        again=96 * MIB,
    ),
    Case(
        "bit-small",
        "One bit is flipped on the way, in a small file",
        "that file is fetched again",
        ({"match": FIVE, "flip": 4_999_999},),
        again=5 * MIB,
    ),
    Case(
        "bit-always",
        "The same bit is flipped every time",
        "told after the second attempt; nothing of it gets its final name",
        ({"match": BIG, "flip": 30 * MIB, "times": None},),
        args=ALONE,
        code=30,
        error="checksum-differs",
        again=96 * MIB,
    ),
    Case(
        "stall",
        "A body stands still",
        f"after --stall-timeout {RESUMED}",
        ({"match": BIG, "stall_after": 20 * MIB},),
        args=("--stall-timeout", "1", *ALONE),
    ),
    Case(
        "stall-again",
        "A body stands still, and so does the second attempt",
        f"after --stall-timeout each time {RESUMED}",
        ({"match": BIG, "ranged": True, "stall_after": 20 * MIB, "times": 3},),
        args=("--stall-timeout", "1", *ALONE),
        again=4 * HELD,
    ),
    Case(
        "silence",
        "A server takes the request and never answers",
        "after --stall-timeout it is asked again",
        ({"match": FIVE, "latency_s": 600.0},),
        args=("--stall-timeout", "1", *ALONE),
    ),
    Case(
        "silent-list",
        "A server takes the request for the list and never answers",
        "after --stall-timeout it is asked again",
        ({"match": LIST, "latency_s": 600.0},),
        args=("--stall-timeout", "1", *ALONE),
    ),
    Case(
        "busy-429",
        "429 with Retry-After: 1",
        "fewer connections, and a second of quiet",
        ({"match": FIVE, "answer": s3_error(429, "TooManyRequests", Retry_After="1"), "times": 2},),
    ),
    Case(
        "busy-503",
        "A burst of 503 SlowDown",
        "fewer connections, and pauses that double",
        ({"match": OBJECTS, "answer": s3_error(503, "SlowDown"), "times": 30},),
        within_s=40.0,
    ),
    Case(
        "503-for-ever",
        "503 for ever",
        "a range is tried ten times, about a minute, and not longer than --timeout",
        ({"match": BIG, "answer": s3_error(503, "SlowDown"), "times": None},),
        code=20,
        error="fetch-timeout",
        args=("--timeout", "4"),
        within_s=7.0,
    ),
    Case(
        "503-list-for-ever",
        "503 for ever, already to the list",
        "tried for two minutes, and not longer than --timeout",
        ({"match": LIST, "answer": s3_error(503, "SlowDown"), "times": None},),
        code=20,
        args=("--timeout", "4"),
        within_s=7.0,
    ),
    Case(
        "500-list",
        "500 to the list, twice",
        "it is asked again",
        ({"match": LIST, "answer": s3_error(500, "InternalError"), "times": 2},),
    ),
    Case(
        "cut-list",
        "The list ends early",
        "it is asked again",
        ({"match": LIST, "cut_after": 5_000},),
    ),
    Case(
        "500-checksum",
        "500 to the question for a checksum, twice",
        "it is asked again",
        ({"match": "^HEAD .*big.bin", "answer": Answer(500), "times": 2},),
    ),
    Case(
        "denied",
        "403 AccessDenied to a file",
        "told at once: another attempt would not help",
        ({"match": BIG, "answer": s3_error(403, "AccessDenied"), "times": None},),
        code=30,
        error="source-refused",
        within_s=3.0,
    ),
    Case(
        "denied-list",
        "403 AccessDenied to the list",
        "told at once: another attempt would not help",
        (
            {"match": LIST, "answer": s3_error(403, "AccessDenied"), "times": None},
            {"match": "^HEAD /bucket/data$", "answer": Answer(403), "times": None},
        ),
        code=30,
        error="source-refused",
        within_s=3.0,
    ),
    Case(
        "expired",
        "Fixed keys expire on the way",
        "told at once, with the variables to renew",
        ({"match": OBJECTS, "skip": 10, "answer": s3_error(400, "ExpiredToken"), "times": None},),
        code=30,
        error="credentials-expired",
        within_s=5.0,
    ),
    Case(
        "slow",
        "50 ms before each first byte and 40 MB/s a connection",
        "it takes its time",
        ({"match": "", "latency_s": 0.05, "bytes_per_s": 40e6, "times": None},),
        again=0,
    ),
)


def main():
    """Print the table."""
    print("| What goes wrong | What the agent does | Exit code | Most that is fetched twice |")
    print("| --- | --- | --- | --- |")
    for case in CASES:
        code = f"{case.code} `{case.error}`" if case.error else str(case.code)
        again = f"{case.again // MIB} MiB" if case.again else "nothing"
        print(f"| {case.what} | {case.outcome} | {code} | {again} |")
    print()
    print("Beside that, what was on its way when an idle connection took over half of a range comes twice:")
    print(f"with one large file as here less than {SHARED // MIB} MiB.")


if __name__ == "__main__":
    main()
