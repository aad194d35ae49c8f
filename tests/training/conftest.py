import pytest
from tiny_chat import save_tiny_chat


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
