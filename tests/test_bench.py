"""The benchmark: narrowing, wrong and missing peers, limits, table, JSON and plot, on fake peers with a fake clock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_fakes import CONV, POOL, FakeClock, FakePeer

from pullback.bench import Selection, limits, ours, results, run, table, timing, trust
from pullback.bench.cases import LAYOUTS, OPS, Case, Task, load_cases
from pullback.bench.data import Data
from pullback.bench.peers import all_peers
from pullback.bench.peers.base import PeerError, Prepared, UnsupportedError
from pullback.cli import console, main
from pullback.rules import Array


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"pool": [POOL], "conv": [CONV]}))
    return path


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., results.Results]:
    """Run with fake peers, each made from the clock, against a fake pullback of so many seconds per call."""

    clock = FakeClock()
    monkeypatch.setattr(limits, "_roofs", lambda: None)  # real ones would take no time on this clock

    def run_fakes(cases: Sequence[Case], *peers: Callable[[FakeClock], FakePeer], mine: float = 1.0, **choice: Any) -> Any:
        monkeypatch.setattr(ours, "Ours", lambda kernel=None: FakePeer(clock, mine, ours.NAME))
        selection = Selection(cases, [peer(clock) for peer in peers], **{"seconds": 0.0, **choice})
        return run(selection, clock=clock, pause=lambda seconds: None)

    run_fakes.clock = clock  # type: ignore[attr-defined]
    return run_fakes


def test_wrong_peer_is_reported_and_still_timed(fake_run: Any, pool_case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    def spoil(array: Array) -> Array:
        return array * 1.01

    found = fake_run([pool_case], lambda clock: FakePeer(clock, 2.0, spoil=spoil), ops=["avg_pool_grad"], layouts=LAYOUTS[:1])
    entry = found.rows[0].entries["fake"]
    assert entry.differs
    assert entry.error == pytest.approx(0.01)
    assert found.rows[0].ratio("fake") == pytest.approx(2.0)
    assert not found.wrong
    table.print_results(found)
    out = capsys.readouterr().out
    assert "2.00*" in out
    assert "fake differs" in out


def test_our_own_wrong_result_is_an_error(monkeypatch: pytest.MonkeyPatch, pool_case: Case, case_file: Path) -> None:
    real = ours.Ours.prepare

    def wrong(self: Any, task: Task, data: Data, threads: int) -> Prepared:
        prepared = real(self, task, data, threads)
        return Prepared(prepared.run, lambda: tuple(a * 2 for a in prepared.result()))

    monkeypatch.setattr(ours.Ours, "prepare", wrong)
    arguments = ["bench", "--cases", str(case_file), "--op", "avg_pool", "--peer", "none", "--seconds", "0"]
    assert main(arguments) == 1


@pytest.mark.parametrize("rich", [True, False])
def test_losing_cases_are_marked(
    rich: bool, fake_run: Any, pool_case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "HAS_RICH", rich)
    found = fake_run(
        [pool_case],
        lambda clock: FakePeer(clock, 4.0, "tortoise"),
        lambda clock: FakePeer(clock, 0.25, "hare", layouts=("channels_first",)),
        ops=["avg_pool"],
    )
    last, first = found.rows
    assert (last.layout, last.loses, last.best_peer()) == ("channels_last", False, "tortoise")
    assert (first.layout, first.loses, first.best_peer()) == ("channels_first", True, "hare")
    table.print_results(found)
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if "LOSES to" in line and "avg_pool" in line and "hare" in line]
    assert "2 rows, 2 compared, 1 lost to the best peer" in out
    assert table.op_rows(found, found.rows)[0][-1] == ""


def test_geometric_means(fake_run: Any, pool_case: Case, conv_case: Case) -> None:
    assert results.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert results.geometric_mean([]) is None
    found = fake_run([pool_case, conv_case], lambda clock: FakePeer(clock, 3.0), ops=["avg_pool", "conv"])
    assert [line[:3] for line in table.summary_rows(found, "median")] == [
        ["avg_pool", "last", "3.00"], ["avg_pool", "first", "3.00"], ["conv", "last", "3.00"], ["conv", "first", "3.00"],
    ]  # fmt: skip


def test_missing_and_refusing_peers_are_named(fake_run: Any, pool_case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    found = fake_run(
        [pool_case],
        lambda clock: FakePeer(clock, 1.0, "absent", why_missing="not installed"),
        lambda clock: FakePeer(clock, 1.0, "picky", refuse=UnsupportedError("no such op")),
        lambda clock: FakePeer(clock, 1.0, "frail", refuse=PeerError("crashed")),
        ops=["max_pool"],
    )
    assert found.missing == {"absent": "not installed"}
    assert found.peers == ["picky", "frail"]
    assert not found.rows[0].entries["picky"].failed
    assert found.rows[0].entries["frail"].failed
    table.print_results(found)
    out = capsys.readouterr().out
    for text in ("absent: not installed", "not timed picky: no such op", "not timed frail: crashed"):
        assert text in out


def test_peers_are_closed_even_when_the_run_breaks(pool_case: Case) -> None:
    peer = FakePeer(FakeClock(), 1.0)

    def stop(label: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Selection([pool_case], [peer], ops=["avg_pool"], seconds=0), tick=stop, clock=peer.clock, pause=peer.clock.step)
    assert peer.closed == 1


def test_limit_shares(monkeypatch: pytest.MonkeyPatch, fake_run: Any, pool_case: Case, conv_case: Case) -> None:
    asked = {}

    class Roofs:
        @staticmethod
        def copier(footprint: int) -> Any:
            asked["copy"] = footprint
            return lambda: fake_run.clock.step(0.5)

        @staticmethod
        def filler(size: int) -> Any:
            asked["writes"] = size
            return lambda: fake_run.clock.step(0.25)

        fma_rate = staticmethod(lambda threads, dtype: {"float32": 1000.0}[dtype] * threads)

    monkeypatch.setattr(limits, "_roofs", lambda: Roofs)
    limits._fma_rate.cache_clear()
    found = fake_run([pool_case, conv_case], ops=["avg_pool_grad", "conv"], layouts=LAYOUTS[:1], threads=1, mine=2.0)
    limits._fma_rate.cache_clear()
    conv, pool = sorted(found.rows, key=lambda row: row.op, reverse=True)
    assert (pool.limit_share, pool.writes_share) == (pytest.approx(0.25), pytest.approx(0.125))
    assert asked["copy"] == pool.bytes_moved
    assert asked["writes"] == 4 * np.prod(pool_case.input_shape)
    assert conv.limit_share == pytest.approx(conv.flop / 1000 / 2.0)
    assert conv.writes_share is None


def test_limit_is_not_measured_without_roofs(
    monkeypatch: pytest.MonkeyPatch, fake_run: Any, pool_case: Case, capsys: Any
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(limits, "ROOFS", "pullback.no_such_package.roofs")
    assert limits._roofs() is None
    found = fake_run([pool_case], ops=["avg_pool"])
    assert found.rows[0].limit_seconds is None
    table.print_results(found)
    assert "not measured" in capsys.readouterr().out


def test_json_round_trip(tmp_path: Path, fake_run: Any, pool_case: Case) -> None:
    found = fake_run([pool_case], lambda clock: FakePeer(clock, 2.0, spoil=lambda a: a * np.nan), ops=["avg_pool"])
    path = tmp_path / "run.json"
    results.save(found, path)
    assert results.load(path) == found
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    row = document["rows"][0]
    assert row["ratios"] == {"fake": 2.0}
    assert row["entries"]["fake"] | {"differs": True, "median": 2.0, "best": 2.0} == row["entries"]["fake"]
    assert {"cpu", "cores", "date"} <= set(document["machine"])
    assert document["settings"]["threads"] == 2


def test_a_busy_row_is_marked_and_counted(fake_run: Any, pool_case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    found = fake_run([pool_case], lambda clock: FakePeer(clock, 2.0), ops=["avg_pool"])
    last, first = found.rows
    first.entries["fake"].samples = [1.0, 4.0, 5.0]
    assert (last.busy, first.busy) == ([], ["fake"])
    assert (table.peer_text(last, "fake"), table.peer_text(first, "fake")) == ("2.00", "4.00?")
    assert (table.note(last), table.note(first)) == ("", "busy: fake")
    assert table.rival_text(found, first) == "2.00 fake last"  # the other row's time, which nothing disturbed
    last.ours.samples = [1.0, 1.5, 2.6]
    assert table.peer_text(last, "fake") == "1.33?"
    assert [line[-1] for line in table.summary_rows(found, "median")] == ["1 of 1", "1 of 1"]
    table.print_results(found)
    assert "2 of 2 rows are not to be trusted (spread beyond 50%)" in capsys.readouterr().out


def test_spread_of_samples() -> None:
    assert trust.spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(3.0 / 3.5)
    assert trust.spread([1.0, 2.0]) is None
    assert not trust.is_busy([1.0, 2.0])
    edge = 1 + trust.SPREAD_BAR / 2
    assert not trust.is_busy([2 - edge, 2 - edge, 1.0, edge, edge])
    assert trust.is_busy([2 - edge, 2 - edge, 1.0, edge + 0.01, edge + 0.01])


@pytest.mark.parametrize(("load", "cores", "warns"), [(None, 2, False), (1.0, 2, False), (1.1, 2, True), (1.1, 4, False)])
def test_load_at_the_start_is_a_warning(
    load: float | None, cores: int, warns: bool, fake_run: Any, pool_case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    found = fake_run([pool_case], ops=["avg_pool"], layouts=LAYOUTS[:1])
    found.machine |= {"load": load, "cores": cores}
    table.print_results(found)
    out = capsys.readouterr().out
    assert out.startswith("WARNING") == warns
    assert ("the machine is busy: load 1.1 on 2 cores" in out) == warns


def test_a_loss_is_beyond_the_noise(fake_run: Any, pool_case: Case) -> None:
    assert [results.is_loss(ratio) for ratio in (0.94, 0.95, 0.99, 1.0)] == [True, False, False, False]
    found = fake_run([pool_case], lambda clock: FakePeer(clock, 0.96), ops=["avg_pool"])
    assert not any(row.loses or found.rival(row).wins for row in found.rows)


def test_end_to_end_on_the_reference_backend(case_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "run.json"
    narrow = ["--op", "avg_pool_grad", "--op", "conv_grad_filter", "--layout", "channels_first", "--dtype", "float64"]
    arguments = ["bench", "--cases", str(case_file), *narrow, "--peer", "none", "--seconds", "0", "--threads", "1"]
    assert main([*arguments, "--backend", "reference", "--json", str(saved)]) == 0
    found = results.load(saved)
    assert [(row.op, row.case, row.layout, row.dtype) for row in found.rows] == [
        ("conv_grad_filter", "small-conv", "channels_first", "float64"),
        ("avg_pool_grad", "small-pool", "channels_first", "float64"),
    ]
    assert all(len(row.ours.samples) >= timing.MIN_ROUNDS and not row.ours.differs for row in found.rows)
    assert found.settings == {"threads": 1, "seconds": 0.0, "backend": "reference"}
    out = capsys.readouterr().out
    assert "small-conv" in out
    assert "2 rows, 0 compared" in out


def test_list_names_ops_cases_and_peers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    for name in [*OPS, *(case.name for case in load_cases()), *(peer.name for peer in all_peers())]:
        assert re.search(rf"^  {re.escape(name)}( |$)", out, re.MULTILINE), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "max_pol"], "--op 'max_pol': there are max_pool,"),
        (["--case", "none-such"], "--case 'none-such'"),
        (["--peer", "theano"], "--peer 'theano'"),
        (["--op", "conv", "--case", "tiny-rgb"], "no op of conv runs on the cases tiny-rgb"),
        (["--threads", "0"], "--threads 0"),
        (["--seconds", "nan"], "--seconds nan"),
        (["--backend", "abacus"], "--backend 'abacus'"),
        (["--cases", "no-such-file.json"], "no-such-file.json"),
        (["--json", "no-such-folder/run.json"], "no-such-folder"),
    ],
)
def test_bad_requests(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_peer_asked_for_by_name_must_be_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PULLBACK_PEERS", str(tmp_path))
    assert main(["bench", "--peer", "ort"]) == 2
    assert "make peers" in capsys.readouterr().err
