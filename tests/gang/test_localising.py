"""Rounds of pairs between simulated nodes, until it is known who is at fault."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import BYTES, USUAL_GBPS, Gang, plain_json

from trainer_agent.gang.course import LATE_S, Work
from trainer_agent.gang.localise import LEAST_S

some = settings(max_examples=25)
BROKEN = ["hang", "wrong", "error", "mute"]
KINDS = {**{kind: {"fault": kind} for kind in BROKEN}, "slow": {"speed": 0.1}, "slower": {"speed": 0.4}}
CODES = dict.fromkeys(BROKEN, "collective-node-failed") | {"slow": "straggler"}


def run(nodes, changes=None, **planned):
    gang = Gang(nodes, changes=changes, **planned)
    gang.run()
    return gang


def messages(gang):
    return [charge["message"] for charge in gang.leader.verdict["charges"]]


def faulty(ranks, kind):
    return dict.fromkeys(ranks, KINDS[kind])


@st.composite
def mixed(draw):
    """Return some nodes, and the fault of each of fewer than a third of them."""
    nodes = draw(st.integers(4, 64))
    ranks = draw(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=(nodes - 1) // 3))
    return nodes, {rank: draw(st.sampled_from(sorted(KINDS))) for rank in ranks}


@some
@given(mixed(), st.integers(0, 1 << 16))
def test_faults_that_always_show_are_named_and_no_healthy_node(job, seed):
    """Whatever mixture of faults it is; all nodes get the same verdict, after few tasks."""
    nodes, kinds = job
    gang = run(nodes, {rank: KINDS[kind] for rank, kind in kinds.items()}, seed=seed, noise=0.05)
    verdict = gang.leader.verdict

    broken = {rank for rank, kind in kinds.items() if kind in BROKEN}
    assert broken <= gang.culprits() <= broken | {rank for rank, kind in kinds.items() if kind == "slow"}
    between = {rank for charge in verdict["charges"] for rank in charge["between"]}
    assert between <= kinds.keys()
    assert verdict["verdict"] in (("retry",) if gang.culprits() else ("pass", "warn"))
    assert all(pod.verdict == verdict for pod in gang.pods)
    assert plain_json(verdict)
    assert len(gang.kinds) <= 2 + 23 + math.ceil(math.log2(nodes))


@pytest.mark.parametrize("nodes,ranks", [(4, [2]), (8, [0]), (8, [1, 6]), (64, range(0, 60, 5)), (1024, [5, 700])])
@pytest.mark.parametrize("kind", ["hang", "wrong", "slow"])
def test_nodes_at_fault_are_named(nodes, ranks, kind):
    gang = run(nodes, faulty(ranks, kind))

    assert [(CODES[kind], (rank,)) for rank in ranks] == gang.codes()
    suspects = [(each["kind"], each["id"]) for each in gang.leader.verdict["suspects"]]
    assert {("node", f"job-node-0-{rank}") for rank in ranks} == set(suspects)
    assert sorted(f"machine-{rank}" for rank in ranks) == sorted(gang.leader.verdict["avoid"]["hostnames"])


def test_the_message_says_how_a_node_failed():
    gang = run(8, faulty([3], "wrong"))

    text = "node 3 (job-node-0-3) failed in 4 of 4 tests with others: node 3: all-reduce gave 7 wrong numbers of 65536"
    assert [text] == messages(gang)
    assert ["roll-call", "consistency", "collective", "localisation"] == [
        phase["name"] for phase in gang.leader.verdict["phases"]
    ]


@pytest.mark.parametrize("nodes,pair", [(4, (0, 3)), (5, (1, 2)), (9, (0, 8))])
def test_a_link_that_is_cut_is_named_and_no_node(nodes, pair):
    gang = run(nodes, cut=[pair])

    assert [("collective-link-failed", pair)] == gang.codes()
    suspect = gang.leader.verdict["suspects"][0]
    assert ("link", f"job-node-0-{pair[0]} - job-node-0-{pair[1]}") == (suspect["kind"], suspect["id"])
    assert {"hostnames": [], "gpus": []} == gang.leader.verdict["avoid"]
    assert [] == gang.leader.verdict["undetermined"]


@some
@given(st.integers(4, 64), st.data())
def test_a_link_that_is_cut_never_accuses_a_node(nodes, data):
    """Of many nodes not all pairs meet; then the failure remains unexplained."""
    pair = tuple(sorted(data.draw(st.sets(st.integers(0, nodes - 1), min_size=2, max_size=2))))
    gang = run(nodes, cut=[pair])

    assert gang.codes() in ([("collective-link-failed", pair)], [("collective-failed", tuple(range(nodes)))])


@pytest.mark.parametrize("noise", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("nodes", [3, 4])
def test_a_link_that_is_cut_is_named_where_rates_vary_widely(nodes, noise):
    """Its nodes are not accused for having been slow with others, too."""
    for seed in range(8):
        gang = run(nodes, cut=[(1, 2)], noise=noise, seed=seed)

        assert ("collective-link-failed", (1, 2)) in gang.codes()
        assert set() == gang.culprits()


@pytest.mark.parametrize("nodes", [4, 8])
def test_a_very_slow_node_explains_that_some_give_it_up(nodes):
    """It is slow with most, and too slow for one of them."""
    gang = run(nodes, {2: {"speed": 0.1}}, cut=[(1, 2)])

    assert [("straggler", (2,))] == gang.codes()


def test_rounds_that_take_long_come_to_an_end():
    """A link takes four that fail and eight others; what is open after the time of six that fail is undetermined."""
    took, longest = 6.0, 10.0 + LATE_S
    starved = {rank: {"speed": BYTES / 1e9 / USUAL_GBPS / took} for rank in range(8)}
    gang = run(8, starved, cut=[(1, 2)], all_ranks=Work((BYTES,), 0.1, 10.0), pair=Work((BYTES,), 0.1, 10.0))

    rounds = [phase["seconds"] for phase in gang.leader.verdict["phases"] if phase["name"] == "localisation"]
    assert 6 * longest < sum(rounds) < 7 * longest + 1
    assert [("collective-undetermined", (1, 2))] == gang.codes()


@pytest.mark.parametrize("changes,cut", [({}, [(0, 1)]), ({1: KINDS["hang"]}, []), ({0: KINDS["wrong"]}, [])])
def test_of_two_nodes_nobody_can_tell(changes, cut):
    gang = run(2, changes, cut=cut)

    assert [("collective-undetermined", (0, 1))] == gang.codes()
    assert [[0, 1]] == [each["ranks"] for each in gang.leader.verdict["undetermined"]]
    assert [] == gang.leader.verdict["suspects"]


def test_of_three_the_two_that_are_well_tell():
    assert [("collective-node-failed", (1,))] == run(3, faulty([1], "hang")).codes()


# ---- slow nodes


@pytest.mark.parametrize(
    "speed,code,culprits,wanted", [(0.1, "straggler", [3], "25%"), (0.4, "slower-node", [], "50%")]
)
@pytest.mark.parametrize("nodes", [6, 64])
def test_a_slow_node_is_named_with_its_ratio(nodes, speed, code, culprits, wanted):
    gang = run(nodes, {3: {"speed": speed}})

    (charge,) = gang.leader.verdict["charges"]
    assert (code, culprits) == (charge["code"], charge["culprits"])
    assert ("retry" if culprits else "warn") == gang.leader.verdict["verdict"]
    text = (
        f"node 3 (job-node-0-3) is slow: its best rate is {10 * speed:.3f} GB/s, {speed:.0%} of the median of all "
        f"nodes, 10.000; wanted {wanted} at least"
    )
    assert text == charge["message"]
    assert (speed, 3) == (charge["evidence"]["ratio"], charge["evidence"]["node"])


@pytest.mark.parametrize("noise", [0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("nodes", [4, 8, 40])
def test_where_rates_vary_widely_nobody_is_accused(nodes, noise):
    for seed in range(3):
        gang = run(nodes, noise=noise, seed=seed)

        assert set() == gang.culprits()
        assert gang.leader.verdict["verdict"] in ("pass", "warn")


def test_without_a_screen_nobody_is_looked_at():
    gang = run(8, {3: {"speed": 0.1}}, screen=0)

    assert [] == gang.codes()
    assert ["all"] == gang.kinds


@pytest.mark.parametrize("nodes,screen,rounds", [(2, 5, 0), (3, 1, 3), (3, 9, 3), (4, 1, 1), (4, 5, 5), (9, 2, 2)])
def test_rounds_of_a_gang_that_is_well(nodes, screen, rounds):
    gang = run(nodes, screen=screen)

    assert ["all"] + ["pairs"] * rounds == gang.kinds
    assert max(rounds, 1) * (nodes // 2) == len(gang.leader.verdict["pairs"])
    assert all(row["passed"] and row["gbps"] == 10.0 for row in gang.leader.verdict["pairs"])
    assert "localisation" not in [phase["name"] for phase in gang.leader.verdict["phases"]]


@pytest.mark.parametrize("shows", [("pairs", 2), ("pairs",)])
def test_a_hang_is_not_waited_for_longer_than_it_is_worth(shows):
    """Once a pair has passed, it is known how long one takes."""
    gang = run(8, {3: {"fault": "hang", "shows": shows}}, pair=Work((1 << 22,), 0.1, 60.0), screen=2)

    timeouts = [task["timeout_s"] for task in gang.tasks.values() if task["kind"] == "pairs"]
    assert (60.0, {LEAST_S["gloo"]}) == (timeouts[0], set(timeouts[1:]))


class ColdStarts(Gang):
    """A gang whose ranks take ten seconds for their first communicator, as those of NCCL may; one that fails ends."""

    COLD_S = 10.0

    def __init__(self, nodes, **how):
        super().__init__(nodes, **how)
        self.warm, self.took = set(), {}

    def _outcome(self, group, task):
        fault, seconds = super()._outcome(group, task)
        took = 0.0 if self.warm.issuperset(group) else self.COLD_S
        fault = fault or ("hang" if took > task["timeout_s"] else "")
        self.warm = self.warm - set(group) if fault else self.warm | set(group)
        self.took[task["id"], group[0]] = took
        return fault, seconds

    def _work(self, pod, task):
        super()._work(pod, task)
        if pod.report and pod.report[1]["ok"]:
            at, said = pod.report
            pod.report = at + self.took[task["id"], task["groups"][pod.rank][0]], said


@pytest.mark.parametrize(
    "shows, named",
    [(("pairs",), ("collective-node-failed", (2,))), (("pairs", 1), ("collective-undetermined", (0, 2)))],
)
def test_ranks_that_begin_anew_have_the_time_for_it(shows, named):
    """What the warm ones took says nothing of those that were ended; nobody fails but with the node at fault."""
    times = {"all_ranks": Work((1 << 22,), 0.1, 60.0), "pair": Work((1 << 22,), 0.1, 30.0)}
    gang = ColdStarts(8, changes={2: {"fault": "hang", "shows": shows}}, backend="nccl", **times)
    gang.run(1000.0)

    assert [named] == gang.codes()
    failed = [pair for pair in gang.leader.verdict["pairs"] if not pair["passed"]]
    assert all(2 in (pair["a"], pair["b"]) for pair in failed)


# ---- rails


@pytest.mark.parametrize("bad", [(2,), (0, 3), (0, 1, 2, 3)])
def test_rails_tell_which_device_it_is(bad):
    """Where only some fail; else it is the whole node."""
    gang = run(8, {3: {"fault": "hang", "bad_rails": bad}}, per_node=4)

    devices = bad if len(bad) < 4 else ()
    codes = ["collective-device-failed"] * bool(devices) + ["collective-node-failed"]
    assert [(code, (3,)) for code in codes] == gang.codes()
    assert [f"GPU-3-{number}" for number in devices] == gang.leader.verdict["avoid"]["gpus"]
    assert ("rails", 1) == (gang.kinds[-1], gang.kinds.count("rails"))


def test_several_nodes_each_have_a_partner_of_their_own():
    gang = run(8, {rank: {"fault": "hang", "bad_rails": (rank,)} for rank in (1, 3)}, per_node=4)

    rails = next(task for task in gang.tasks.values() if task["kind"] == "rails")
    assert [[1, 0], [3, 2]] == rails["pairs"]
    assert ["GPU-1-1", "GPU-3-3"] == gang.leader.verdict["avoid"]["gpus"]


def test_a_partner_has_failed_with_nobody_else():
    gang = run(8, {3: {"fault": "hang", "bad_rails": (2,)}}, per_node=4, cut=[(0, 1)])

    assert [[3, 2]] == next(task for task in gang.tasks.values() if task["kind"] == "rails")["pairs"]
    assert {"GPU-3-2"} == set(gang.leader.verdict["avoid"]["gpus"])
