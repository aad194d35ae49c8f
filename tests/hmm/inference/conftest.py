import pytest

from hmm_datasets.hmm import inference


@pytest.fixture(params=["compiled", "torch"], scope="module", autouse=True)
def way(request):
    """Each test here runs both ways to compute: the compiled loops of a CPU, and the calls into torch of a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(inference, "serves", lambda *tables: False)
        yield request.param
