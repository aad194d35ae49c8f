"""Names in figures are shown as they are written, whatever they mean to matplotlib; legends leave room for curves."""

import pytest
from matplotlib.figure import Figure

from hmm_datasets.report.plots import paper_figure, save_figure

NAMES = ["$x_{", "a$b$c", r"$\bad{$", "$$", "Ba$$in", "x\x1b[2J", "x\ud800"]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/matplotlib/matplotlib/issues/20266",
    "`$$` as the text of a figure",
    "drawn as it is, as any name",
)
@pytest.mark.outside(
    "https://github.com/telperion/nine-or-null/issues/14",
    "a plot with the title `Ba$$in`",
    "drawn; a `$` in a name begins no formula",
)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_with_dollars_or_codes_is_drawn_everywhere(tmp_path, name):
    figure = Figure(layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot([1, 2, 300], [1, 2, 1000], label=name)
    left.legend(title=name)
    left.set(title=name, xlabel=name, xscale="log")
    middle.set_xticks([0, 1], [name, "b"])
    middle.text(0, 0, name)
    right.bar([name, "b"], [1, 2])
    figure.suptitle(name)
    save_figure(figure, tmp_path / "figure.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.pdf", "figure.png"]


@pytest.mark.thorough
def test_a_name_with_dollars_is_drawn_as_wide_as_its_characters_and_powers_of_ten_stay_powers(tmp_path):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    left.plot([1, 1000], [1, 2])
    left.set(xscale="log", title="$xxxx$")
    right.set(title="xxxxxx")
    right.set_xticks([0, 1], ["$x$", "b"])
    save_figure(figure, tmp_path / "figure.png")
    widths = [axes.title.get_window_extent().width for axes in (left, right)]
    assert widths[0] == pytest.approx(widths[1], rel=0.15)
    assert not left.title.get_parse_math()
    ticks = [tick for tick in left.get_xticklabels() if tick.get_text()]
    assert r"$\mathdefault{10^{2}}$" in [tick.get_text() for tick in ticks]
    assert all(tick.get_parse_math() for tick in ticks)
    assert right.get_xticklabels()[0].get_text() == r"\$x\$"  # which matplotlib draws as `$x$`


@pytest.mark.thorough
def test_a_long_legend_makes_the_figure_higher_and_leaves_its_panel_as_high(tmp_path):
    heights = []
    for number in (3, 8):
        with paper_figure(tmp_path / f"{number}.png", 2.6) as (figure, (axes,)):
            for curve in range(number):
                axes.plot([0, 1], [0, curve], label=f"a predictor with a long name: {curve}")
        heights.append(axes.get_position().height * figure.get_figheight())
    assert heights[1] > 0.95 * heights[0] > 0.95
