"""The panel's own logic, on launches that are made up; real ranks in a real browser are in test_browser_panel.py."""

import importlib
import json
import threading
import time
from types import SimpleNamespace

import plotly.graph_objects as go
import pytest
from made_up import Ranks, equivalence_run, rank_error

from dpviz.figures import equivalence
from dpviz.figures.verdict import Verdict
from dpviz.questions import unequal
from dpviz.questions.equivalence import Config
from dpviz.records import Step
from dpviz.widgets import newest
from dpviz.widgets.messages import MOST_LINES, printed
from dpviz.widgets.newest import NewestOnly

pytestmark = pytest.mark.quiet

panels = importlib.import_module("dpviz.panel")


@pytest.fixture
def ranks(monkeypatch):
    made = Ranks()
    monkeypatch.setattr(panels, "start", made.start)
    return made


def make(*, controls=("world_size", "accumulation_steps"), figure=equivalence, **more):
    config = more.pop("config", Config(accumulation_steps=2, dtype="float64"))
    return panels.panel(lambda config: None, config, figure=figure, controls=controls, **more)


def settle(panel):
    panel._newest.wait()


def status(panel):
    return panel._status.value


# -- what a panel says


def test_a_new_panel_has_run_once_and_says_so(ranks):
    panel = make()
    assert repr(panel) == "k=4, K=2: gradients equal: yes, 64 samples"
    assert len(ranks.jobs) == 1 and ranks.jobs[0].world_size == 4
    assert "<b>Equal:</b>" in panel._verdict.value and "dpviz-yes" in panel._verdict.value
    assert "4 ranks, gloo, 2 cores, loopback" in panel._foot.value and "measured" in panel._foot.value
    assert "✓" in status(panel) and panel._stop_button.disabled


def test_the_repr_names_what_was_changed_and_stays_short(ranks):
    panel = make(controls=["world_size", "accumulation_steps", "average", "all_reduce", "model", "norm", "optimizer"])
    assert repr(panel).startswith("k=4, K=2: ")
    for name, value in dict(
        average=False, all_reduce="after_step", model="transformer", norm="layer", optimizer="adamw"
    ).items():
        panel.controls[name].value = value
    settle(panel)
    assert repr(panel).startswith("k=4, K=2, average=no, all_reduce=after_step, model=transformer")
    assert len(repr(panel)) < 110


def test_a_control_moved_is_a_run_of_its_value(ranks):
    panel = make()
    panel.controls["accumulation_steps"].value = 5
    panel.controls["world_size"].value = 8
    settle(panel)
    assert (ranks.jobs[-1].world_size, ranks.jobs[-1].config.accumulation_steps) == (8, 5)
    assert repr(panel) == "k=8, K=5: gradients equal: yes, 320 samples"
    assert panel.run.environment.world_size == 8
    assert len([x for trace in panel.figure.data if trace.name == "labels" for x in trace.x]) == 8


def test_what_is_running_is_said_at_once(ranks):
    panel = make()
    ranks.open = True
    panel.controls["world_size"].value = 8
    assert "● running" in status(panel) and "k=8, K=2" in status(panel)
    job = ranks.wait_for(2)
    job.end(ranks.run(job))
    settle(panel)
    assert "✓" in status(panel)


def test_a_panel_without_a_world_size_control_uses_its_argument(ranks):
    make(controls=["dtype"], world_size=3)
    assert ranks.jobs[0].world_size == 3


def test_the_world_size_may_be_implied_by_the_config_or_stand_alone(ranks):
    ranks.answer = equivalence_run(3)
    make(config=unequal.Config(tokens=((1,), (2,), (3,))), controls=["tokens"])
    panel = make(config=None, controls={"world_size": (1, 8)}, world_size=3)
    assert [job.world_size for job in ranks.jobs] == [3, 3] and ranks.jobs[1].config is None
    assert repr(panel).startswith("k=3: ")


# -- newest wins, stop, errors


def test_twenty_values_end_on_the_last_and_never_queue(ranks):
    panel = make()
    ranks.open = True
    panel.controls["accumulation_steps"].value = 3
    first = ranks.wait_for(2)
    for value in range(4, 23):
        panel.controls["accumulation_steps"].value = value
    first.end(ranks.run(first))
    last = ranks.wait_for(3)
    last.end(ranks.run(last))
    settle(panel)
    assert last.config.accumulation_steps == 22 and len(ranks.jobs) == 3
    assert repr(panel).startswith("k=4, K=22: ")


def test_a_long_run_gives_way_to_a_newer_request(ranks, monkeypatch):
    monkeypatch.setattr(newest, "PATIENCE_S", 0.05)
    panel = make()
    ranks.open = True
    panel.controls["accumulation_steps"].value = 3
    old = ranks.wait_for(2)
    panel.controls["accumulation_steps"].value = 4
    new = ranks.wait_for(3)
    assert old.stopped
    new.end(ranks.run(new))
    settle(panel)
    assert repr(panel).startswith("k=4, K=4: ") and not new.stopped


def test_stop_ends_its_own_run_and_the_next_move_works(ranks, monkeypatch):
    monkeypatch.setattr(newest, "PATIENCE_S", 0.02)
    mine, other = make(), make()
    ranks.open = True
    mine.controls["world_size"].value = 2
    my_job = ranks.wait_for(3)
    other.controls["world_size"].value = 5
    other_job = ranks.wait_for(4)
    end = time.monotonic() + 2
    while mine._stop_button.disabled and time.monotonic() < end:
        time.sleep(0.01)
    assert not mine._stop_button.disabled, "a run that lasts can be stopped"
    mine._stop_button.click()
    settle(mine)
    assert my_job.stopped and not other_job.stopped
    assert "■ stopped" in status(mine) and "● running" in status(other)
    other_job.end(ranks.run(other_job))
    ranks.open = False
    mine.controls["world_size"].value = 3
    settle(mine)
    assert repr(mine).startswith("k=3, ") and "✓" in status(mine)


def test_stop_does_not_wait_for_another_panels_run(ranks):
    panel = make()
    ranks.open = True
    panel.controls["world_size"].value = 2
    job, ended = ranks.wait_for(2), threading.Event()
    job.stop = ended.wait  # as a job does that stands behind a longer one
    panel.stop()
    settle(panel)
    assert "■ stopped" in status(panel) and not ended.is_set()
    ended.set()


def test_a_ranks_error_shows_its_line_and_the_panel_still_works(ranks):
    panel = make()
    before = panel.figure.to_json()
    ranks.answer = rank_error(__file__)
    panel.controls["world_size"].value = 2
    settle(panel)
    said = panel._messages.value
    assert "Rank 1 raised ValueError: &lt;gave up&gt;" in said and "test_panel.py, line 3, in experiment" in said
    assert "▶   3  import importlib" in said and "rank 0: waits" in said
    assert "✗ failed" in status(panel) and repr(panel) == "k=2, K=2: ValueError"
    assert "the last run that succeeded" in panel._verdict.value and panel.figure.to_json() == before
    ranks.answer = None
    panel.controls["world_size"].value = 3
    settle(panel)
    assert panel._messages.value == "" and "✓" in status(panel) and "<b>Equal:</b>" in panel._verdict.value


def test_a_wrong_config_is_answered_with_its_sentence_alone(ranks):
    panel = make(controls=["model", "world_size"])
    panel.controls["model"].value = "weight"
    settle(panel)
    assert "weight goes with count" in panel._messages.value and "<pre>" not in panel._messages.value
    assert len(ranks.jobs) == 1


def test_an_error_or_a_print_of_the_figure_is_shown_too(ranks):
    def draw(figure, run):
        print("drawing", len(run.results))
        if len(run.results) == 2:
            raise RuntimeError("no <ink>")
        return Verdict(html="<b>Drawn.</b>", text="drawn")

    panel = make(figure=SimpleNamespace(make=go.Figure, draw=draw))
    assert "drawing 4" in panel._messages.value and repr(panel) == "k=4, K=2: drawn"
    panel.controls["world_size"].value = 2
    settle(panel)
    assert "RuntimeError: no &lt;ink&gt;" in panel._messages.value and "drawing 2" in panel._messages.value
    panel.controls["world_size"].value = 3
    settle(panel)
    assert "✓" in status(panel)


def test_the_first_runs_failure_leaves_a_panel(ranks):
    ranks.answer = rank_error(__file__)
    panel = make()
    assert repr(panel) == "k=4, K=2: ValueError" and panel.run is None
    panel._save("csv")
    assert "nothing to save yet" in panel._messages.value


def test_an_interrupt_of_the_cell_stops_the_first_run(ranks, monkeypatch):
    ranks.open = True
    wait = NewestOnly.wait
    calls = []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 1:
            ranks.wait_for(1)
            raise KeyboardInterrupt
        wait(self)

    monkeypatch.setattr(NewestOnly, "wait", interrupted)
    panel = make()
    assert ranks.jobs[0].stopped and repr(panel) == "stopped"


# -- on the way


def test_what_ranks_print_is_shown_escaped_and_cut(ranks):
    ranks.lines = [f"<{n}>" for n in range(MOST_LINES + 5)]
    panel = make()
    said = panel._messages.value
    assert "… 5 lines before" in said and f"rank 0: &lt;{MOST_LINES + 4}&gt;" in said and "&lt;4&gt;" not in said
    assert printed([]) == ""


def test_a_long_run_tells_its_progress(ranks, monkeypatch):
    monkeypatch.setattr(panels, "BETWEEN_WORDS_S", 0)
    panel = make(controls=["world_size", "steps"], config=Config(steps=20))
    ranks.open = True
    panel.controls["steps"].value = 30
    job = ranks.wait_for(2)
    job.on_record(1, Step(step=8, loss=9.0))
    job.on_record(0, Step(step=2, loss=1.234))
    job.on_print(3, "hello")
    assert "step 3 of 30, loss 1.23" in panel._progress.value and "rank 3: hello" in panel._messages.value
    job.end(ranks.run(job))
    settle(panel)
    assert panel._progress.value == "" and "rank 3: hello" in panel._messages.value


def test_a_lesson_may_say_its_own_progress(ranks, monkeypatch):
    monkeypatch.setattr(panels, "BETWEEN_WORDS_S", 0)
    panel = make(progress=lambda record: f"at <{record}>")
    panel._on_record(0, 7)
    assert "at &lt;7&gt;" in panel._progress.value


def test_the_buttons_save_and_say_where(ranks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel = make()
    for kind in ("csv", "json"):
        panel._save_buttons[kind].click()
        assert (tmp_path / f"equivalence-k4-K2.{kind}").exists()
        assert f"saved equivalence-k4-K2.{kind} in {tmp_path}" in panel._progress.value


def test_a_log_slider_leaves_no_tail(ranks):
    panel = make(controls={"lr": (0.001, 1.0)})
    panel.controls["lr"].value = 10**-0.3
    settle(panel)
    assert ranks.jobs[-1].config.lr == 0.501187


def test_the_figure_is_one_and_the_page_is_told_in_one_message(ranks):
    panel = make()
    figure, messages = panel.figure, []
    figure.observe(lambda change: messages.append(change["new"]), "_py2js_update")
    panel.controls["world_size"].value = 8
    settle(panel)
    assert panel.figure is figure and len([message for message in messages if message]) == 1


def test_a_panel_is_shown_without_a_browser(ranks):
    bundle = make()._repr_mimebundle_()
    assert bundle["text/plain"] == "k=4, K=2: gradients equal: yes, 64 samples"
    json.dumps(bundle)
