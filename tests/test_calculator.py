"""A calculator: closed forms at every move, without ranks."""

import ipywidgets
import pytest

import dpviz as dp
from dpviz.figures import plan
from dpviz.planner import PRESETS, Config

CONTROLS = {
    "params": (1e9, 2e9, 7e9, 13e9, 70e9, 5e12),
    "world_size": (1, 2, 4, 8, 16, 64, 1024),
    "memory_gb": (16, 192),
    "accumulation_steps": (1, 32),
    "link_gbps": (1, 3200),
}


def make(function=Config.plan, config=None, **more):
    options = {"figure": plan, "controls": CONTROLS, "presets": {"params": PRESETS}} | more
    return dp.calculator(function, config or Config(), **options)


def test_it_answers_at_once_and_says_so():
    made = make()
    assert repr(made) == "k=8, K=1: take ZeRO-1: 38.5 GB of 80 GB, 24.5 GB a step"
    assert made.config == Config() and made.answer.choice == 1
    assert "<b>Take ZeRO-1:</b>" in made._verdict.value and "dpviz-yes" in made._verdict.value
    assert "does not fit" in made._foot.value and "no rank ran" in made._foot.value and "✓" in made._status.value


def test_its_controls_speak_while_they_are_moved_and_are_of_the_config():
    made = make()
    sliders = [control for control in made.controls.values() if hasattr(control, "continuous_update")]
    assert len(sliders) == 5 and all(slider.continuous_update for slider in sliders)
    assert not any(control.disabled for control in made.controls.values())
    assert isinstance(made.controls["world_size"], ipywidgets.SelectionSlider)
    assert made.controls["link_gbps"].value == 400
    assert [label for label, _ in made.controls["world_size"].options][-2:] == ["64", "1,024"]
    assert [label for label, _ in made.controls["params"].options][2::3] == ["7B", "5T"]
    assert made.controls["memory_gb"].step == 1  # a browser moves values onto the steps: 80 must be one


def test_a_link_that_is_only_computed_with_needs_no_machine_that_can_make_one(monkeypatch):
    monkeypatch.setattr(dp.Link, "supported", classmethod(lambda cls: pytest.fail("asked for links")))
    assert make().controls["link_gbps"].disabled is False


def test_notes_stand_below_without_markup_of_their_own():
    class Noting:
        make, draw = staticmethod(plan.make), staticmethod(plan.draw)
        notes = staticmethod(lambda answer: ["<b>one", "two"])

    assert "&lt;b&gt;one" in make(figure=Noting)._foot.value and "two" in make(figure=Noting)._foot.value


def test_a_move_computes_with_the_configs_own_fields():
    made = make()
    made.controls["world_size"].value = 64
    assert (made.config.world_size, made.answer.choice) == (64, 1)
    made.controls["link_gbps"].value = 10
    assert made.config.link_gbps == 10 and made.answer.stages[0].communication_s > 20
    assert repr(made) == "k=64, K=1, link_gbps=10: take ZeRO-1: 29.31 GB of 80 GB, 27.56 GB a step"
    traces = {trace.name: trace for trace in made.figure.data}
    assert traces["model state"].y[3] == pytest.approx(1.75e9)


def test_a_preset_sets_its_control_in_one_change_and_follows_it():
    calls = []

    def counted(config):
        calls.append(config.params)
        return config.plan()

    made = make(counted)
    assert made.presets["params"].value == 7e9 and made.presets["params"].description == "model"
    made.presets["params"].value = 70e9
    assert (made.controls["params"].value, calls) == (70e9, [7e9, 70e9])
    made.controls["params"].value = 2e9
    assert (made.presets["params"].value, calls[-1]) == ("own", 2e9)
    made.presets["params"].value = 13e9
    made.presets["params"].value = "own"
    assert calls == [7e9, 70e9, 2e9, 13e9]
    made.controls["params"].value = 5e12
    assert made.presets["params"].label == "5T"


def test_what_goes_wrong_is_said_and_the_figure_stays():
    def fussy(config):
        print("thinking")
        if config.memory_gb > 100:
            raise ValueError("<no> such card")
        return config.plan()

    made = make(fussy)
    before = made.figure.to_json()
    assert "thinking" in made._messages.value
    made.controls["memory_gb"].value = 120
    assert "&lt;no&gt; such card" in made._messages.value and "thinking" in made._messages.value
    assert "✗ failed" in made._status.value
    assert made.config.memory_gb == 80 and made.figure.to_json() == before
    assert repr(made).endswith(": ValueError") and "that of the last" in made._verdict.value
    made.controls["memory_gb"].value = 90
    assert "✓" in made._status.value and "such card" not in made._messages.value and made.config.memory_gb == 90


def test_an_error_that_is_none_of_values_points_at_its_line():
    made = make(lambda config: config.plan().stages[config.accumulation_steps])
    made.controls["accumulation_steps"].value = 9
    assert "IndexError" in made._messages.value


def test_prints_of_the_drawing_are_shown():
    class Chatty:
        make, draw = (
            staticmethod(plan.make),
            staticmethod(lambda figure, answer: print("hello") or plan.draw(figure, answer)),
        )

    made = make(figure=Chatty)
    assert "hello" in made._messages.value and "no rank ran" in made._foot.value


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"controls": ["worldsize"]}, "there is no field named 'worldsize'"),
        ({"controls": ["link_latency_us"]}, "there is no field named 'link_latency_us'"),  # that is of a launch
        ({"controls": {"world_size": (1, 2, 4)}}, "world_size is 8, which is not among the options"),
        ({"controls": {"world_size": (1, 8, 0)}}, "world_size is 0, but it must be"),
        ({"controls": ["memory_gb"]}, "the control of params does not offer the preset 7B .7e.09.. Give"),
        ({"controls": {"params": (7e9, 13e9, 70e9)}}, "the control of params does not offer the preset 5T"),
        ({"controls": {"params": (1e9, 1e13)}}, "Give the control a tuple of options"),
        ({"figure": 3}, "it must have make and draw"),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(more, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(**more)


def test_a_page_that_says_it_is_here_gets_all_that_is_shown():
    made = make()
    sent = []
    for widget in made._spoken:
        widget.send_state = lambda key=None, widget=widget: sent.append(widget)
    made._resend()
    assert {made._verdict, made._foot, made._status, made._messages, made.presets["params"]} <= set(sent)
    assert set(made.controls.values()) <= set(sent)
