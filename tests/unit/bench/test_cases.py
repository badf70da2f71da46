from __future__ import annotations

import pytest

from bench import objects
from bench.cases import DEFAULT, NODE_CPU, Case, CaseError, parse, parse_all
from bench.contenders import CONTENDERS, ContenderError, contenders, rotated


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("37x27", Case("gangs", 37, 27)),
        ("3x100+20000", Case("gangs", 3, 100, bound=20000)),
        ("singles:3000", Case("singles", 3000, 1)),
        ("singles:3000+100", Case("singles", 3000, 1, bound=100)),
        ("nofit:1000", Case("nofit", 1, 1000)),
        ("jobs:3x100", Case("jobs", 3, 100)),
        ("jobs:3x100+7", Case("jobs", 3, 100, bound=7)),
        ("stream:50x4@30", Case("stream", 1500, 4, rate=50)),
        ("stream:50x4@30+8", Case("stream", 1500, 4, bound=8, rate=50)),
    ],
)
def test_a_case_and_how_it_is_written(text: str, case: Case) -> None:
    assert parse(text) == case
    assert str(case) == text


@pytest.mark.parametrize(
    "text",
    ["", "3", "x100", "3x", "0x10", "3x0", "-1x3", "3x100+", "3x100+0", "3 x 100", "stream:50x4", "jobs:3", "job:3x1",
     "singles:3x1", "nofit:", "3x100x2", "1e3x2", "3x1000000", "stream:0x4@30"],
)  # fmt: skip
def test_what_is_no_case(text: str) -> None:
    with pytest.raises(CaseError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert "stream:RxS@T" in str(caught.value)


def test_several_in_their_order_each_once() -> None:
    assert [str(case) for case in parse_all(["3x100 7x333", "3x100,singles:5"], 5000)] == [
        "3x100",
        "7x333",
        "singles:5",
    ]


def test_the_wrong_one_of_several_is_named() -> None:
    with pytest.raises(CaseError, match="'7y3' is no case"):
        parse_all(["3x100 7y3"], 5000)


def test_no_case_at_all() -> None:
    with pytest.raises(CaseError, match="no case was given"):
        parse_all([" "], 5000)


def test_the_default_cases_can_be_on_the_default_number_of_nodes() -> None:
    assert len(parse_all([DEFAULT], 5000)) == 14


def test_a_case_that_no_node_has_room_for_is_refused_with_the_number_that_do() -> None:
    with pytest.raises(CaseError, match="NODES=126") as caught:
        parse_all(["1x1000"], 100)
    assert "case 1x1000" in str(caught.value)
    parse("1x1000").check(126)


@pytest.mark.parametrize("text", ["nofit:1", "nofit:10+5"])
def test_a_refusal_that_could_not_be(text: str) -> None:
    with pytest.raises(CaseError, match="case nofit:"):
        parse(text).check(100)


class TestObjects:
    def test_all_groups_come_before_all_pods(self) -> None:
        groups, pods = objects.create(parse("3x5"), "phalanx")
        assert len(groups) == 3
        assert len(pods) == 15
        assert all(request.path.endswith("/podgroups") for request in groups)
        assert b'"podGroupName":"g0"' in pods[0].body
        assert b'"schedulerName":"phalanx"' in pods[0].body

    def test_contenders_get_the_same_bytes_but_for_the_schedulers_name(self) -> None:
        ours, theirs = (objects.create(parse("2x3"), name) for name in ("phalanx", "default-scheduler"))
        for one, other in zip(ours[1], theirs[1], strict=True):
            assert one.body.replace(b'"phalanx"', b'"default-scheduler"') == other.body

    def test_single_pods_have_no_group(self) -> None:
        (pods,) = objects.create(parse("singles:3"), "phalanx")
        assert not any(b"schedulingGroup" in request.body for request in pods)

    def test_the_limit_binds_each_pod_and_overfills_no_node(self) -> None:
        case, nodes = parse("3x5+20"), 6
        *_, pods = objects.create_and_bind(case, nodes)
        assert all(request.then and request.then.path.endswith(f"/{request.name}/binding") for request in pods)
        assert len({request.then.path for request in pods if request.then}) == 15
        there = [objects.nodes.name(i % nodes) for i in range(case.bound)]
        where = there + objects.places(case, nodes)
        assert max(where.count(node) for node in set(where)) <= NODE_CPU

    def test_a_stream_has_its_times_and_each_group_before_its_pods(self) -> None:
        (requests,) = objects.create(parse("stream:2x2@3"), "phalanx")
        assert len(requests) == 6 * 3
        assert [request.at for request in requests] == sorted(request.at for request in requests)
        groups = [request for request in requests if request.path.endswith("/podgroups")]
        assert [request.at for request in groups] == [0, 0.5, 1, 1.5, 2, 2.5]
        assert requests[0] is groups[0]

    def test_the_stream_of_the_limit_binds_too(self) -> None:
        (requests,) = objects.create_and_bind(parse("stream:2x2@3"), 4)
        assert sum(request.then is not None for request in requests) == 12

    def test_one_node_too_few_is_left_where_a_gang_is_not_to_fit(self) -> None:
        assert len(objects.before(parse("nofit:10"), 50)) == 41
        assert objects.before(parse("nofit:100"), 50) == []

    def test_jobs(self) -> None:
        (jobs,) = objects.create(parse("jobs:2x3"), "phalanx")
        assert len(jobs) == 2
        assert not any(b"schedulerName" in request.body for request in jobs)
        (native,) = objects.create(parse("jobs:2x3"), "default-scheduler", native=True)
        assert b'"scheduling":{"schedulingPolicy":{"gang":{}}}' in native[0].body
        workloads, groups, limit = objects.create_and_bind(parse("jobs:2x3"), 4)
        assert len(workloads) == len(groups) == len(limit) == 2
        assert b'"podGroupName":"g0"' in limit[0].body


class TestContenders:
    def test_the_limit_is_three(self) -> None:
        assert [each.name for each in contenders(["limit, phalanx"])] == [
            "limit-16",
            "limit-48",
            "limit-128",
            "phalanx",
        ]

    def test_all(self) -> None:
        assert len(contenders([CONTENDERS])) == 6

    @pytest.mark.parametrize("name", ["volcano", "limit-7", ""])
    def test_nobody_of_that_name(self, name: str) -> None:
        with pytest.raises(ContenderError, match="there is: limit"):
            contenders([name])

    def test_the_limit_has_no_part_in_a_refusal(self) -> None:
        takers = [each.name for each in contenders([CONTENDERS]) if each.takes_part(parse("nofit:10"))]
        assert takers == ["kube-scheduler", "kube-scheduler-100", "phalanx"]

    def test_everybody_comes_first_once(self) -> None:
        of = contenders([CONTENDERS])
        orders = [rotated(of, run) for run in range(len(of))]
        assert {order[0].name for order in orders} == {each.name for each in of}
        assert all(sorted(each.name for each in order) == sorted(each.name for each in of) for order in orders)

    def test_the_control_plane_is_the_same_but_for_kube_scheduler(self, tmp_path) -> None:
        for text in ("3x10", "singles:30"):
            specs = [each.spec(parse(text), "b", 10, tmp_path) for each in contenders([CONTENDERS])]
            for component in ("etcd", "kube-apiserver", "kube-controller-manager"):
                assert len({(str(spec.gates(component)), str(spec.flags.get(component))) for spec in specs}) == 1

    def test_kube_scheduler_has_only_the_gates_that_a_case_needs(self, tmp_path) -> None:
        (kube,) = contenders(["kube-scheduler"])
        gates = {
            text: kube.spec(parse(text), "b", 10, tmp_path).gates("kube-scheduler")
            for text in ("3x10", "singles:30", "jobs:3x10")
        }
        assert gates == {
            "3x10": {"GenericWorkload": True},
            "singles:30": {"GenericWorkload": False},
            "jobs:3x10": {"GenericWorkload": True, "WorkloadWithJob": True},
        }

    def test_the_percentage_is_all_that_the_other_kube_scheduler_says_differently(self, tmp_path) -> None:
        plain, full = contenders(["kube-scheduler kube-scheduler-100"])
        flags = plain.spec(parse("1x2"), "b", 10, tmp_path).flags["kube-scheduler"]
        assert flags == ("--kube-api-qps=5000", "--kube-api-burst=10000")
        (flag,) = full.spec(parse("1x2"), "b", 10, tmp_path).flags["kube-scheduler"]
        text = (tmp_path / "kube-scheduler.yaml").read_text()
        assert flag == f"--config={tmp_path / 'kube-scheduler.yaml'}"
        assert "percentageOfNodesToScore: 100" in text
        assert "qps: 5000" in text
