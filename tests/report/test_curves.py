import io
import json
import math
import re
import sys

import pytest

from hmm_datasets.report.curves import Curve, Panel, panels_of
from hmm_datasets.report.overview import draw_run
from hmm_datasets.report.plots import plot_panel
from hmm_datasets.report.terminal import text_plot, text_plots


def history(count: int, **more) -> list[dict]:
    rows = []
    for step in range(1, count + 1):
        tokens, loss = 1000 * step, 1 + 2 * step**-0.5
        row = {"step": step, "tokens": tokens, "loss": loss, "learning_rate": 1e-3 / step, "grad_norm": 1 / step}
        rows.append(row | {"tokens_per_second": 5e5 + step} | more)
        if math.log2(step).is_integer():
            rows.append({"tokens": tokens, "step": step, "eval_loss": loss + 0.1, "eval_cross_entropy_bayes": 0.9})
    return rows


def write(folder, rows) -> None:
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_has_panels_for_its_values():
    rows = history(40)
    assert [panel.name for panel in panels_of(rows)] == ["loss", "learning_rate", "grad_norm", "tokens_per_second"]
    loss = panels_of(rows)[0]
    assert loss.level == ("optimal loss", 0.9)
    assert [curve.label for curve in loss.curves] == ["training", "held out"]
    assert loss.curves[1].tokens == [1000, 2000, 4000, 8000, 16000, 32000]
    assert [panel.name for panel in panels_of([{"tokens": 1, "eval_loss": 2.0}])] == ["loss"]
    assert panels_of([]) == []


def test_runs_on_preferences_and_rewards_have_panels_of_their_own():
    pairs = panels_of(
        [{"tokens": 1, "loss": 0.7, "rewards/margins": 0.1, "rewards/accuracies": 0.5, "eval_loss": 0.6}]
    )
    assert [panel.name for panel in pairs] == ["loss", "margin", "accuracy"]
    assert pairs[0].title == "loss (nats per pair)"
    row = {"tokens": 1, "loss": 0.1, "reward": 0.2, "kl": 0.01, "completions/mean_length": 7.0}
    rewarded = panels_of([row, {"tokens": 1, "eval_reward": 0.3}])
    assert [panel.name for panel in rewarded] == ["loss", "reward", "kl", "length"]
    assert rewarded[0].title == "loss"
    assert rewarded[1].curves == [Curve("training", [1], [0.2]), Curve("held out", [1], [0.3])]


def test_values_that_are_not_finite_are_left_out_and_the_last_of_equal_tokens_is_taken():
    rows = [{"tokens": 1, "grad_norm": math.inf}, {"tokens": 2, "grad_norm": 3.0}, {"tokens": 2, "grad_norm": 4.0}]
    (panel,) = panels_of(rows)
    assert panel.curves == [Curve("", [2], [4.0])]


def test_a_text_plot_puts_every_point_where_it_belongs():
    """The first and last point of a falling line are in the corners of the frame, and the middle one in its center."""
    panel = Panel("x", "title", [Curve("a", [0, 100], [5.0, 5.0]), Curve("b", [0, 50, 100], [10.0, 5.0, 0.0])])
    lines = text_plot(panel, width=60, height=16).splitlines()
    assert len(lines) == 16
    assert {len(line) for line in lines[1:-1]} == {60}
    frame = [re.split("[│┤]", line)[1] for line in lines[2:-2]]
    found = [(row, line.index("o")) for row, line in enumerate(frame) if "o" in line]
    assert found[0] == (0, 0)
    assert found[-1] == (len(frame) - 1, len(frame[0]) - 1)
    assert abs(found[1][0] - len(frame) / 2) <= 1
    assert abs(found[1][1] - len(frame[0]) / 2) <= 1


@pytest.mark.thorough
@pytest.mark.parametrize("width", [1, 80, 133, 1000])
def test_text_plots_keep_to_the_width_and_have_no_color(width):
    text = text_plots(panels_of(history(300)), width)
    assert "\x1b" not in text
    longest = max(map(len, text.splitlines()))
    assert longest == min(max(width, 40), 160)
    assert "optimal loss 0.9" in text
    assert "training 1.115" in text
    assert "10k" in text


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2, 9])
def test_few_rows_are_drawn_too(count, tmp_path):
    for panel in panels_of(history(count)):
        assert panel.title in text_plot(panel)
        plot_panel(panel, tmp_path / "few.png", title="few")


def test_flat_and_negative_values_are_drawn():
    text_plot(Panel("x", "x", [Curve("", [1, 2, 3], [0.0, 0.0, 0.0])]))
    text_plot(Panel("x", "x", [Curve("", [1, 2, 3], [-1e-9, -5.0, 1e12])]))


@pytest.mark.thorough
def test_the_end_of_a_run_prints_its_plots_and_writes_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    write(tmp_path, history(20))
    paths = draw_run(tmp_path)
    names = ["grad_norm.png", "learning_rate.png", "loss.png", "tokens_per_second.png"]
    assert sorted(path.name for path in paths) == names
    assert sorted(path.name for path in (tmp_path / "plots").glob("*.png")) == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) == 72
    assert "learning rate" in printed
    assert len(draw_run(tmp_path, in_terminal=False)) == 4
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("count", [0, 1, 9])
def test_a_run_of_few_rows_or_none_ends_without_plots(count, tmp_path, capsys):
    write(tmp_path, history(count))
    assert draw_run(tmp_path) == []
    assert capsys.readouterr() == ("", "")


def test_plots_that_fail_do_not_fail_the_run_and_say_so(tmp_path, capsys):
    write(tmp_path, history(20))
    (tmp_path / "plots").write_text("a file where the folder should be")
    assert draw_run(tmp_path) == []
    told = capsys.readouterr().err
    assert f"{tmp_path}: trained and saved; drawing its plots failed with the error above" in told
    assert "FileExistsError" in told


@pytest.mark.thorough
def test_a_stream_without_unicode_gets_characters_that_it_can_encode(tmp_path, monkeypatch):
    write(tmp_path, history(20))
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert len(draw_run(tmp_path)) == 4
    stream.flush()
    assert b"learning rate" in stream.buffer.getvalue()


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/Lightning-AI/pytorch-lightning/issues/2369",
    "the data loading time of a run, and not only when it has ended",
    "each log row has the seconds of a step and of its parts; a run draws them, as pictures and as text",
)
def test_times_of_a_step_and_its_parts_are_drawn_and_saved_as_text(tmp_path, capsys):
    rows = [
        {
            **{"step": n, "tokens": 64 * n, "loss": 2.0, "samples_per_second": 8.0, "memory_allocated": 2.0**30},
            **{"step_seconds": 0.5, "data_seconds": 0.1, "forward_seconds": 0.125, "backward_seconds": 0.25},
        }
        for n in range(1, 13)
    ]
    panels = {panel.name: panel for panel in panels_of(rows)}
    assert [(curve.label, curve.values[0]) for curve in panels["step_seconds"].curves] == [
        *(("step", 0.5), ("data", 0.1), ("forward", 0.125), ("backward", 0.25)),
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw_run(tmp_path)
    text = (tmp_path / "plots" / "plots.txt").read_text(encoding="utf-8")
    assert "seconds per step by tokens seen" in text
    assert "backward 0.25" in text
    assert "rows per second" in text
    assert text.strip() in capsys.readouterr().out
    assert {"step_seconds.png", "samples_per_second.png", "memory.png"} <= {
        path.name for path in (tmp_path / "plots").iterdir()
    }


@pytest.mark.outside(
    "https://github.com/mwaskom/seaborn/issues/680",
    "plot more lines than the palette has colours, and find each of them in the legend",
    "28 curves differ in colour or dashes; the first seven repeated for ever, though 28 were promised",
)
def test_every_curve_of_a_panel_looks_like_no_other(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("hmm_datasets.report.plots.save_figure", lambda figure, _: figures.append(figure))
    parts = ("step", "data", "forward", "backward", "optimizer", *(f"reward {number}" for number in range(23)))
    curves = [Curve(name, [100, 2000], [1.0, 0.5]) for name in parts]
    plot_panel(Panel("step_seconds", "seconds per step", curves), tmp_path / "unused.png", title="run")
    lines = figures[0].axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == len(parts)
