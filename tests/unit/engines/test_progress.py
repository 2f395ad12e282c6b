import io
import logging
import re
import time

import pytest
from rich.console import Console

from rff_dist.data.blocks import cut_blocks
from rff_dist.engines.events import (
    BlockDone,
    PassFailed,
    PassFinished,
    PassMerging,
    PassResumed,
    PassStarted,
    Remark,
    Rounds,
    StepStarted,
    log,
)
from rff_dist.engines.progress_bar import RichProgress

BLOCKS = cut_blocks(100, 1, rows_per_block=4)
EVENTS = [
    PassStarted("features", len(BLOCKS), 100),
    *(BlockDone("features", block, 0.25, "serial") for block in BLOCKS),
    PassFinished("features", 6.5),
]


def shown(events, *, terminal):
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=120, legacy_windows=False
    )
    with RichProgress(console) as progress:
        for event in events:
            progress(event)
    return file.getvalue()


def test_bar_shows_label_share_rate_and_times_on_a_terminal():
    text = shown(EVENTS, terminal=True)
    assert "features" in text
    assert "100%" in text
    assert "rows/s" in text


def test_plain_lines_where_there_is_no_terminal():
    text = shown(EVENTS, terminal=False)
    lines = text.splitlines()
    assert lines == ["features: 100 rows"]
    assert "\x1b" not in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_job_that_tells_nothing_is_shown_to_be_at_work(monkeypatch, terminal):
    monkeypatch.setattr(RichProgress, "TICK", 0.01)
    monkeypatch.setattr(RichProgress, "EVERY", 0.0)
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=120, legacy_windows=False
    )
    deadline = time.monotonic() + 30.0
    with RichProgress(console, "predict"):
        while "predict" not in file.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "predict" in file.getvalue()


def test_many_passes_of_one_name_are_two_plain_lines():
    passes = [event for _ in range(61) for event in EVENTS]
    text = shown(
        [Rounds("features", 300), *passes, Remark("solve", "of 3")], terminal=False
    )
    assert re.sub(r"[\d.]+ s$", "… s", text, flags=re.MULTILINE).splitlines() == [
        "features: 1 of at most 300 passes",
        "features: done after 61 passes, … s",
        "choose alpha and solve: of 3",
    ]


def test_fits_of_other_models_are_one_phase_and_repeat_nothing_that_was_said():
    inspect = PassFinished("inspect", 0.1, 100)
    again = PassResumed("inspect", 100, 100)
    comparison = [StepStarted("compare"), Remark("compare", "with a linear model")]
    fit = [PassStarted("inspect", 25, 100), again, inspect, Remark("solve", "D = 3")]
    text = shown([*fit[:1], inspect, *comparison, *fit], terminal=False)
    assert text.splitlines() == [
        "check rows: 100 rows",
        "compare with other models: with a linear model",
    ]


def test_a_pass_at_work_says_its_share_and_never_more_rows_than_later(monkeypatch):
    monkeypatch.setattr(RichProgress, "EVERY", 0.0)
    _, *lines, last = shown(EVENTS[:-1], terminal=False).splitlines()
    shares = [re.search(r"(\d+) % of 100 rows", line) for line in lines]
    percents = [int(share[1]) for share in shares if share]
    assert percents == sorted(percents)
    assert set(percents) == set(range(4, 100, 4))
    assert all(re.search(r"about \d+ s left", line) for line in lines if "%" in line)
    # nobody knows how long a step goes on after its pass
    assert re.search(r"100 rows are done", last)


def test_the_bar_counts_passes_and_steps_where_their_number_is_limited():
    text = shown([Rounds("features", 300), *EVENTS, *EVENTS], terminal=True)
    assert "features 2/300" in text
    assert "tune length scales 7/800" in shown([Rounds("tune", 800, 7)], terminal=True)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_pass_says_when_it_adds_up_the_workers_sums_and_the_next_one_does_not(
    monkeypatch, terminal
):
    monkeypatch.setattr(RichProgress, "EVERY", 0.0)
    merging = PassMerging("features", 3)
    assert "adding up 3 workers' sums" in shown(
        [*EVENTS[:-1], merging], terminal=terminal
    )
    assert "sums" not in shown([merging, *EVENTS], terminal=terminal).splitlines()[-1]


def test_failed_pass_is_shown_as_stopped():
    events = [*EVENTS[:3], PassFailed("features", 1.0, ValueError("no"))]
    assert "features: stopped after 1.0 s (ValueError)" in shown(events, terminal=False)
    assert "stopped after" in shown(events, terminal=True)


def test_log_has_passes_at_info_and_blocks_and_steps_at_debug(caplog):
    caplog.set_level(logging.DEBUG)
    for event in [
        StepStarted("accumulate"),
        *EVENTS,
        Rounds("tune", 800, 7),  # for displays
        PassFailed("other", 1.0, ValueError("no")),
    ]:
        log(event)
    info = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert info == [
        "features: 100 rows in 25 blocks",
        "features: done after 6.5 s",
        "other: stopped after 1.0 s (ValueError)",
    ]
    assert sum(r.levelno == logging.DEBUG for r in caplog.records) == len(BLOCKS) + 1


def test_the_clock_goes_on_after_a_phase_that_reached_its_total():
    with RichProgress(
        Console(file=io.StringIO(), force_terminal=True, width=120)
    ) as progress:
        for event in [*EVENTS, Remark("solve", "of 3")]:
            progress(event)
            task = progress._bar.tasks[0]
            # rich shows `finished_time`, which stands still, in the place of `elapsed`
            # from then on
            assert not task.finished


def test_the_last_parts_of_a_job_have_titles():
    last = [event for part in ("baselines", "report") for event in _begun(part)]
    text = shown(last, terminal=False)
    assert "baselines" not in text
    assert "report" not in text
    assert len(text.splitlines()) == 2


def _begun(part):
    return [StepStarted(part), Remark(part, "")]
