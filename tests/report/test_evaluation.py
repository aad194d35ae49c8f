import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import made_up
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.chat.measures import share
from hmm_datasets.evaluation.evaluation import draw_pictures, write_evaluation
from hmm_datasets.files import digest_problems
from hmm_datasets.report.evaluation_plots import draw_evaluation, plot_kl_positions
from hmm_datasets.report.evaluation_tables import evaluation_tables, evaluation_text, summary
from hmm_datasets.report.page import write_page
from hmm_datasets.report.plots import predictor_styles, save_figure
from hmm_datasets.report.tables import optimum_table

NAMES = ["positions", "kl_positions", "training", "beliefs", "simplex"]
SCRIPT = "<script>alert('x')</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A report with every task, and its figures."""
    folder = tmp_path_factory.mktemp("drawn")
    report, items = made_up.report(f"models/{SCRIPT}", completions={"greedy": f" Paris {SCRIPT}"})
    return report, items, draw_evaluation(report, items, folder)


@pytest.fixture(scope="module")
def page(drawn, tmp_path_factory) -> str:
    report, _, plots = drawn
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(report, plots, path)
    return path.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Every element of a page with its attributes, and all text."""

    def __init__(self, page: str):
        super().__init__()
        self.found, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.thorough
def test_every_task_has_its_figures_as_png_and_as_pdf(drawn):
    _, _, plots = drawn
    assert [path.stem for path in plots] == NAMES
    for path in plots:
        with Image.open(path) as image:
            assert abs(image.width - 1050) <= 1, "3.5 inches at 300 dots"
            assert len(image.convert("L").getcolors(1 << 20)) > 50, "not an empty sheet"
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")
    assert len(list(plots[0].parent.iterdir())) == 2 * len(plots)


@pytest.mark.thorough
def test_the_same_report_gives_the_same_bytes(drawn, tmp_path):
    report, items, plots = drawn
    paths = draw_evaluation({"model": report["model"]}, {"beliefs": items["beliefs"]}, tmp_path)
    assert [path.name for path in paths] == ["simplex.png"], "letters, lines, and an image in the PDF"
    for path in paths:
        for kind in (".png", ".pdf"):
            again, before = path.with_suffix(kind), plots[0].with_name(path.name).with_suffix(kind)
            digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (again, before)]
            assert digests[0] == digests[1], again.name
            assert not re.search(rb"CreationDate|ModDate|tIME", again.read_bytes())


@pytest.mark.thorough
def test_predictive_vectors_are_drawn_by_their_components(drawn, tmp_path):
    """Vectors of four numbers on a plane, and the same with an error: no simplex, since they are no distributions."""
    generator = np.random.default_rng(0)
    true = generator.normal(size=(300, 2)) @ generator.normal(size=(2, 4))
    items = [{"belief": t, "probed": p} for t, p in zip(true.tolist(), (true + 0.01).tolist(), strict=True)]
    paths = draw_evaluation({"model": drawn[0]["model"]}, {"beliefs": items}, tmp_path)
    assert [path.stem for path in paths] == ["vectors"]
    assert (tmp_path / "vectors.pdf").stat().st_size > 5_000


def test_a_report_of_one_task_has_only_the_figures_and_tables_of_that_task(tmp_path):
    report, items = made_up.report()
    text = {name: report[name] for name in ("model", "time", "text")}
    assert draw_evaluation(text, {"text": items["text"]}, tmp_path) == []
    assert len(summary(text)) == 1
    assert "bits per byte" in evaluation_text(text)
    assert "predictor" not in evaluation_text(text)
    write_page(text, [], tmp_path / "report.html")
    headings = re.findall("<h2>(.*?)</h2>", (tmp_path / "report.html").read_text())
    assert headings == ["Held-out text", "How this was made"]


@pytest.mark.thorough
def test_a_report_with_missing_values_is_drawn_and_printed(tmp_path):
    """A model equal to the distribution, and a single sequence."""
    report, _ = made_up.report()
    optimum = report["optimum"]
    for result in (*optimum["cross_entropy"].values(), *optimum["kl"].values(), optimum["bayes_gap"]):
        result["standard_error"] = None
        result["by_position_error"] = [None] * optimum["length"]
    optimum["kl"]["bayes"]["by_position"] = [0.0] * optimum["length"]
    found = {name: report[name] for name in ("model", "time", "optimum", "core")}
    plot_kl_positions(optimum, tmp_path / "kl_positions.png")
    text = evaluation_text(found)
    assert "nan" not in text.lower()
    assert "None" not in text
    optimum["num_sequences"] = 1
    text = evaluation_text(found)
    assert text.count("1 held-out sequence of 24") == text.count("one sequence has no standard error") == 2
    assert "+- -" not in text


def test_a_chat_without_questions_has_no_shares():
    report, _ = made_up.report()
    chat = made_up.chat() | {"questions": 0, "loss_low": None, "loss_high": None}
    chat["shares"] = {name: share(0, 0) for name in chat["shares"]}
    text = evaluation_text({"model": report["model"], "chat": chat})
    assert "nan" not in text.lower()
    assert "NaN" not in json.dumps(chat)


def test_a_figure_that_fails_leaves_no_file(tmp_path):
    figure = Figure(figsize=(1e6, 1))
    with pytest.raises(ValueError, match="too large"):
        save_figure(figure, tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.png", "a.pdf"])
def test_a_figure_is_a_png_and_a_pdf_of_the_same_name(tmp_path, name):
    save_figure(Figure(figsize=(2, 1)), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF-")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_figure_of_another_type_is_refused_before_it_is_written(tmp_path):
    with pytest.raises(InputError, match=r"a\.svg: a plot is written as PNG and PDF; expected"):
        save_figure(Figure(figsize=(2, 1)), tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


def test_no_two_predictors_have_the_same_style_even_without_color():
    names = ["uniform", "unigram", "process_unigram", "bigram", "process_bigram", "bayes", "oracle"]
    names += [f"{order}-gram" for order in range(3, 12)]
    found = dict(predictor_styles(names))
    assert set(found) == set(names)
    assert len({(style["color"], style["linestyle"]) for style in found.values()}) == len(names)
    assert list(dict(predictor_styles(["bayes", "4-gram", "model", "3-gram", "unigram"]))) == [
        "unigram",
        "3-gram",
        "4-gram",
        "bayes",
    ]


def kept_figure(monkeypatch, plot, report) -> Figure:
    kept = []
    monkeypatch.setattr("hmm_datasets.report.plots.save_figure", lambda figure, *_, **__: kept.append(figure))
    plot(report, "unused.png")
    return kept[0]


def test_the_divergences_drawn_are_those_of_the_report(monkeypatch):
    optimum, _ = made_up.optimum()
    (axes,) = kept_figure(monkeypatch, plot_kl_positions, optimum).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    np.testing.assert_array_equal(lines["bigram, in context"].get_ydata(), optimum["kl"]["bigram"]["by_position"])
    assert axes.get_yscale() == "log"
    assert "nats" in axes.get_ylabel()


# Tables


def test_the_table_of_the_distribution_has_ngrams_and_the_last_token():
    optimum, _ = made_up.optimum()
    lines = optimum_table(optimum).text().splitlines()
    assert lines[0].split()[-4:] == ["last", "token,", "nats", "+-"]
    names = [re.split("  +", line)[0] for line in lines[2:8]]
    assert names == [
        "Bayes-optimal",
        "model",
        "3-gram, in context",
        "bigram, in context",
        "unigram, in context",
        "uniform",
    ]
    assert lines[4].split()[-2] == f"{optimum['final_token']['3-gram']['cross_entropy']:.4f}"


def test_a_model_below_the_optimum_is_reported():
    report, _ = made_up.report()
    assert "BELOW" not in evaluation_text(report)
    report["optimum"]["bayes_gap"] |= {"bayes_gap": -0.05, "standard_error": 0.02}
    assert "BELOW" not in evaluation_text(report), "within three standard errors"
    report["optimum"]["bayes_gap"] |= {"standard_error": 0.01}
    assert "BELOW the optimal loss by more than three standard errors" in evaluation_text(report)


def test_the_summary_says_how_far_from_the_optimum_with_its_error():
    report, _ = made_up.report()
    gap = report["optimum"]["bayes_gap"]
    first = summary(report)[0]
    assert f"{gap['bayes_gap']:.4f} +- {gap['standard_error']:.4f} nats per token" in first
    low, high = (gap["bayes_gap"] + side * 2.0227 * gap["standard_error"] for side in (-1, 1))
    assert f"95% interval {low:.4f} .. {high:.4f}" in first
    assert "hance" not in first
    report["optimum"]["bayes_gap"] = {**gap, "standard_error": 1.0}
    assert "Chance may explain that" in summary(report)[0]
    report["optimum"]["floor"] = "oracle"
    assert "so at most that far above the optimal loss" in summary(report)[0]


def test_the_text_names_every_step_and_the_score_of_a_subset():
    report, _ = made_up.report()
    text = evaluation_text(report)
    for found in report["training"]["predictors"].values():
        assert found["passed_step"] is None or f"{found['passed_step']:,}" in text
    assert "CORE subset (3 of 22 tasks)" in text
    assert "can only be compared with that of the same subset" in text
    assert "not measured: piqa, boolq" in text


def test_a_completion_cannot_control_the_terminal():
    report, _ = made_up.report(completions={"greedy": "\x1b[2J\r\x07 Paris"})
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", evaluation_text(report))


# The page


@pytest.mark.thorough
def test_the_page_loads_nothing(page):
    addresses = []
    for tag, attributes in Elements(page).found:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base")
        addresses += [attributes[name] for name in ("src", "href", "srcset", "data", "poster") if name in attributes]
    assert len(addresses) == len(NAMES)
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    without_data = re.sub("data:image/png;base64,[A-Za-z0-9+/=]+", "", page)
    assert not re.search(r"https?:|@import|url\(|//", without_data)
    assert "default-src 'none'" in page


def test_a_completion_cannot_script_the_page(page):
    found = Elements(page)
    assert "script" not in {tag for tag, _ in found.found}
    assert not any(name.startswith("on") for _, attributes in found.found for name in attributes)
    assert SCRIPT in found.text, "in the model's name, as text"
    assert found.text.count(f" Paris {SCRIPT}") == 2, "the greedy completion, and one of the sampled ones"


def test_the_page_has_figures_tables_and_provenance(page, drawn):
    report, _, _ = drawn
    found = Elements(page)
    assert sum(tag == "figure" for tag, _ in found.found) == len(NAMES)
    for fact in (report["model"]["sha256"], report["commit"], "versions.torch", "hashes.optimum", "seeds.stream"):
        assert fact in found.text
    assert summary(report)[0] in found.text
    assert "3-gram, in context" in found.text
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_the_template_is_in_the_package():
    """Hatch takes all files of a package's folder into the wheel, whatever their kind."""
    import hmm_datasets.report

    assert (Path(hmm_datasets.report.__file__).parent / "page.html").is_file()


def test_one_document_has_no_interval_and_no_plural():
    text = {"bits_per_byte": 0.5, "bits_per_byte_low": None, "bits_per_byte_high": None, "perplexity": 4.0}
    text |= {"perplexity_low": None, "perplexity_high": None, "nats_per_token": 1.4, "level": 0.95, "unit": "document"}
    text |= {"num_tokens": 9, "bytes": 30, "num_documents": 1, "window": 5, "least_context": 2}
    report = {"text": text}
    (sentence,) = summary(report)
    assert sentence.startswith("On held-out text the model needs 0.5000 bits per byte over 1 document; its perplexity")
    ((table,),) = evaluation_tables(report).values()
    assert "1 document; windows of 5 tokens" in table.note
    assert table.note.endswith("one has no interval")
    (sentence,) = summary({"text": text | {"bits_per_byte_low": 0.4, "bits_per_byte_high": 0.6, "num_documents": 3}})
    assert "0.5000 bits per byte (95% interval 0.4000 .. 0.6000) over 3 documents" in sentence


@pytest.mark.parametrize(
    ("untrained", "shuffled", "markov", "said"),
    [
        (0.95, 0.1, {}, "but the same probe of an untrained model has 0.9500, more"),
        (0.9, 0.1, {}, "but the same probe of an untrained model has 0.9000, as much as it"),
        (0.5, 0.1, {"1": {"r2": 0.97}}, "but beliefs given the last 1 symbols alone have 0.9700, more"),
        (0.5, 0.1, {"1": {"r2": 0.6}}, "; the best control, beliefs given the last 1 symbols alone, has 0.6000"),
        (None, 0.1, {}, "; the best control, the same probe for shuffled beliefs, has 0.1000"),
    ],
)
def test_a_probe_is_not_praised_beside_a_control_that_beats_it(untrained, shuffled, markov, said):
    layers = {"all": {"r2": 0.9, "untrained_r2": untrained, "shuffled_r2": shuffled}}
    (sentence,) = summary({"beliefs": {"layers": layers, "markov": markov}})
    assert sentence.startswith("A linear probe of all layers has a held-out R² of 0.9000 for the belief")
    assert said in sentence
    assert ("need not have" in sentence) == said.startswith("but")


@pytest.mark.thorough
def test_a_picture_that_fails_costs_no_result_and_leaves_none_of_the_evaluation_before_it(tmp_path, monkeypatch):
    def fails(*_):
        raise ValueError("RGBA values should be within 0-1 range")

    report, items = made_up.report()
    write_evaluation(report, items, tmp_path)
    draw_pictures(report, items, tmp_path)
    assert list((tmp_path / "plots").iterdir())
    assert "<img" in (tmp_path / "report.html").read_text()
    monkeypatch.setattr("hmm_datasets.report.evaluation_plots.plot_kl_positions", fails)
    later = report | {"time": "2027-01-01T00:00:00"}
    write_evaluation(later, items, tmp_path)
    with pytest.raises(ValueError, match="RGBA"):
        draw_pictures(later, items, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["time"] == later["time"]
    assert {path.stem for path in (tmp_path / "items").iterdir()} == set(items)
    assert not list((tmp_path / "plots").iterdir())
    page = (tmp_path / "report.html").read_text()
    assert later["time"] in page
    assert "<img" not in page
    assert digest_problems(tmp_path) == []
