"""What a panel is made of: controls, messages, caught prints, and a figure that is right after a reload."""

import threading

import ipywidgets
import pytest
from made_up import equivalence_run

from dpviz.figures import equivalence
from dpviz.questions import unequal
from dpviz.questions.equivalence import Config
from dpviz.records import Run
from dpviz.widgets.controls import changed, make_controls, shown
from dpviz.widgets.live_figure import LiveFigure, leaves
from dpviz.widgets.messages import explained
from dpviz.widgets.prints import prints_of_this_thread
from dpviz.widgets.saving import save_beside


def test_prints_of_other_threads_pass_by(capsys):
    with prints_of_this_thread() as caught:
        print("mine")
        other = threading.Thread(target=lambda: print("another's"))
        other.start()
        other.join()
    print("after")
    assert caught.getvalue() == "mine\n" and capsys.readouterr().out == "another's\nafter\n"


def test_explained_leaves_no_markup_of_others():
    assert "<script>" not in explained(TypeError("<script>")) and "&lt;script&gt;" in explained(ValueError("<script>"))


# -- controls


def test_controls_come_from_the_configs_fields():
    controls = make_controls(Config(), ["world_size", "accumulation_steps", "reduction", "average", "lr"], world_size=4)
    kinds = [type(control).__name__ for control in controls.values()]
    assert kinds == ["IntSlider", "IntSlider", "Dropdown", "Checkbox", "FloatSlider"]
    assert (controls["accumulation_steps"].min, controls["accumulation_steps"].max) == (1, 64)
    assert controls["reduction"].options == ("mean", "sum") and controls["lr"].value == 0.1
    assert "K" in controls["accumulation_steps"].tooltip
    sliders = [control for control in controls.values() if hasattr(control, "continuous_update")]
    assert len(sliders) == 3 and not any(control.continuous_update for control in sliders)


def test_ranges_narrow_a_control():
    narrow = {"world_size": (1, 8), "dtype": ("float64", "float32"), "lr": (0.001, 1.0), "average": None}
    controls = make_controls(Config(), narrow, world_size=4)
    assert controls["world_size"].max == 8 and controls["dtype"].options == ("float64", "float32")
    assert isinstance(controls["lr"], ipywidgets.FloatLogSlider) and controls["lr"].value == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("controls", "sentence"),
    [
        (["worldsize"], "there is no field named 'worldsize' to control. The fields are: world_size, "),
        ({"world_size": (1, 3)}, "world_size is 4, but it must be "),
        ({"accumulation_steps": (0, 3)}, "must lie within 1 to 64"),
        ({"dtype": ("float64", "int8")}, "dtype has no option 'int8'"),
        ({"average": (0, 1)}, "average has no range to narrow; give None"),
    ],
)
def test_wrong_controls_are_refused_with_a_sentence(controls, sentence):
    with pytest.raises(ValueError, match=sentence.split(".")[0]):
        make_controls(Config(), controls, world_size=4)


def test_rows_of_numbers_are_typed_as_on_the_command_line():
    config = unequal.Config(tokens=((10, 30), (60, 100)))
    (control,) = make_controls(config, ["loss_sums"], world_size=2).values()  # none are given, so there is no shape
    assert control.value == "" and control.continuous_update is False
    assert changed(config, {"loss_sums": "1,2/3,4", "world_size": 2}).loss_sums == ((1, 2), (3, 4))
    assert changed(config, {"loss_sums": ""}).loss_sums is None
    with pytest.raises(ValueError, match="loss_sums"):
        changed(config, {"loss_sums": "1,two"})


def test_settings_are_written_with_the_courses_symbols():
    values = {"dtype": "float64", "accumulation_steps": 2, "world_size": 4, "average": False, "lr": 0.5}
    assert shown(values) == "k=4, K=2, dtype=float64, average=no, lr=0.5"
    assert shown(values, defaults={"dtype": "float64", "lr": 0.1, "average": True}) == "k=4, K=2, average=no, lr=0.5"


# -- the figure in the browser


def test_a_page_that_loads_later_draws_what_is_there():
    live = LiveFigure(equivalence.make())
    with live.changing() as figure:
        equivalence.draw(figure, equivalence_run(5))
    texts = [trace.get("text") for trace in live._widget_data if trace["name"] == "labels"]
    assert list(texts[0]) == ["0", "1", "2", "3", "4"]
    assert live._widget_layout["xaxis"]["range"] == live.layout.xaxis.range or list(
        live._widget_layout["xaxis"]["range"]
    ) == list(live.layout.xaxis.range)


def test_a_page_that_says_it_is_here_gets_what_ever_changed_and_no_whole_axis():
    live, messages = LiveFigure(equivalence.make()), []
    with live.changing() as figure:
        equivalence.draw(figure, equivalence_run(3, fault="sum"))
    live.observe(lambda change: messages.append(change["new"]), "_py2js_update")
    live.resend()
    (sent,) = [message for message in messages if message]
    assert {"x", "y", "hovertext", "marker.size"} <= set(sent["style_data"]) and "type" not in sent["style_data"]
    assert {"xaxis.range", "yaxis.range", "shapes[0].x1", "annotations[0].text"} <= set(sent["layout_data"])
    assert not {"xaxis", "xaxis2.type", "height", "autosize", "template"} & set(sent["layout_data"])


def test_a_browsers_report_changes_nothing_in_the_kernel():
    live = LiveFigure(equivalence.make())
    before = live.to_json()
    uid = live.data[0].uid
    live._js2py_traceDeltas = {
        "trace_deltas": [{"uid": uid, "marker": {"opacity": 1}}],
        "trace_edit_id": live._last_trace_edit_id,
    }
    live._js2py_relayout = {"relayout_data": {"xaxis.range": [0, 1]}, "source_view_id": "1"}
    assert live.to_json() == before


def test_nothing_offers_to_send_the_figure_away():
    config = LiveFigure(equivalence.make())._config
    assert config["showSendToCloud"] is False and "sendDataToCloud" in config["modeBarButtonsToRemove"]


def test_leaves_name_properties_one_by_one():
    assert dict(leaves({"a": {"b": [1, 2]}, "shapes": [{"x": 1}, {"x": 2}], "c": []})) == {
        "a.b": [1, 2],
        "shapes[0].x": 1,
        "shapes[1].x": 2,
        "c": [],
    }


# -- saving


def test_data_are_saved_beside_the_notebook_and_never_over_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = equivalence_run(4, 2)
    paths = [save_beside(run, kind, settings="k=4, K=2, average=no") for kind in ("csv", "csv", "json")]
    stem = "equivalence-k4-K2-averageno"
    assert paths == [tmp_path / f"{stem}.csv", tmp_path / f"{stem}_2.csv", tmp_path / f"{stem}.json"]
    assert Run.load(paths[2]).facts["samples"] == 64
    assert paths[0].read_text().startswith("rank,step,loss")
