# Answers that are not those of a Hub: each ends in one line, and no server is waited for without end

import pytest
from odd_hub import ANSWERS, odd_hub

CODE = """
    import sys
    sys.path.insert(0, {folder!r})
    from odd_hub import outcomes
    outcomes({kinds!r}, patience=1)
"""


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/kubernetes-sigs/inference-perf/issues/609",
    "an error instead of a hang when the Hub does not deliver a tokenizer",
    "`did not answer within 30 s`, after a line that names what is waited for",
)
def test_an_answer_that_is_not_one_of_a_hub_ends_in_one_line(local_hub, tmp_path, request):
    kinds = [kind for kind in ANSWERS if kind != "cut off"]  # which huggingface_hub tries again for seconds
    code = CODE.format(folder=str(request.path.parent), kinds=kinds)
    with odd_hub() as address:
        outcomes = local_hub.child(code, tmp_path / "home", HF_ENDPOINT=address)
    assert list(outcomes) == kinds
    for kind, lines in outcomes.items():
        for what, line in lines.items():
            assert "Traceback" not in line, (kind, what)
            assert "\n" not in line
        assert lines["process"].startswith("me/"), kind
        assert lines["model"], kind
    for kind in ("null", "list", "number", "page", "object"):
        assert "is not one of a Hub (" in outcomes[kind]["process"]
        assert "check HF_ENDPOINT and the proxy" in outcomes[kind]["branches"]
    assert "403 Ask for access on the page of the model." in outcomes["gated"]["model"]
    assert "redirects" in outcomes["redirects"]["branches"]
    assert "did not answer within 1 s, and what was downloaded before does not have it" in outcomes["silent"]["model"]
