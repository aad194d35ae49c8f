import pytest
from tiny_chat import save_tiny_chat


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    """Runs print their curves, but write no PNGs of them, which is a third of a tiny run.

    That they are written is claimed in `tests/report/test_curves.py`, and of a run in
    `tests/recipes/test_evaluated_card.py`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hmm_datasets.report.overview.write_plots", lambda found, folder: [])
        yield


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """Folder of a tiny chat model."""
    folder = tmp_path_factory.mktemp("base")
    save_tiny_chat(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tokenizer(base):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(base)


@pytest.fixture
def padded_to(monkeypatch):
    """Sets the multiple to which trainers pad output layers, whatever the device is."""
    return lambda multiple: monkeypatch.setattr(
        "hmm_datasets.training.trainer.vocabulary_multiple", lambda device: multiple
    )
