"""Secrets are masked wherever text shows them; text that only resembles one is not changed."""

import copy
import json
import pickle

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.files import write_yaml
from hmm_datasets.runtime.credentials import (
    Secret,
    masked,
    masked_arguments,
    refuse_masks,
)

LETTERS = "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"


def test_flags_of_special_tokens_are_not_masked():
    arguments = ["--eos_token", "<|end|>", "--hub_token", "mine", "--pad_token=<|pad|>", "--push_to_hub_token=mine"]
    assert masked_arguments(arguments) == [
        *("--eos_token", "<|end|>", "--hub_token", "<HUB_TOKEN>"),
        *("--pad_token=<|pad|>", "--push_to_hub_token=<PUSH_TO_HUB_TOKEN>"),
    ]


def test_a_mapping_keeps_its_shape_under_the_mask():
    value = {"model_init_kwargs": {"token": "mine"}, "hub_token": None, "sizes": (1, 2.5), "note": ["ghp_" + LETTERS]}
    assert masked(value, []) == {
        "model_init_kwargs": {"token": "<TOKEN>"},
        "hub_token": None,
        "sizes": [1, 2.5],
        "note": ["<SECRET>"],
    }


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["HF_TOKEN=mine-1", "python", "x.py"], ["HF_TOKEN=<SECRET>", "python", "x.py"]),
        (["sh", "-c", "WANDB_API_KEY='mine-1' python x"], ["sh", "-c", "WANDB_API_KEY='<SECRET>' python x"]),
        (["--webhook", "https://h/mine-1"], ["--webhook", "<WEBHOOK>"]),
        (["--a=curl -H 'Authorization: Bearer mine-123'"], ["--a=curl -H 'Authorization: Bearer <SECRET>'"]),
        (["git", "https://me:mine-1@h/x"], ["git", "https://<SECRET>@h/x"]),
        (["https://hooks.example.org/a/mine-1"], ["https://hooks.example.org/<SECRET>"]),
        (["--eos_token=</s>", "--max_tokens", "9", "key=1"], ["--eos_token=</s>", "--max_tokens", "9", "key=1"]),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(words, kept):
    assert masked_arguments(words) == kept


def test_a_secret_shows_its_value_only_when_asked(tmp_path):
    secret = Secret("mine-1", "hub_token")
    write_yaml(tmp_path / "settings.yaml", {"hub_token": secret})
    shown = [str(secret), repr(secret), f"{secret:>20}", "%s" % secret, json.dumps({"a": [secret]})]  # noqa: UP031
    shown += [(tmp_path / "settings.yaml").read_text(), str(vars(type("S", (), {"a": secret}))), "".join(secret)]
    assert all("mine" not in text and "<HUB_TOKEN>" in text for text in shown)
    assert b"mine" not in pickle.dumps(secret)
    assert pickle.loads(pickle.dumps([secret])) == [None]
    assert copy.deepcopy([secret])[0].reveal() == "mine-1"


def test_settings_with_masks_in_place_of_secrets_are_refused():
    with pytest.raises(InputError, match="hub_token is <HUB_TOKEN>, which records have in place of a secret; give"):
        refuse_masks({"seed": 1, "hub_token": "<HUB_TOKEN>"})
    refuse_masks({"hub_token": "mine-1", "seed": 1, "eos_token": "x"})


@pytest.mark.outside(
    "https://github.com/allenai/rslearn/issues/687",
    "settings without API keys and passwords in URLs, and with `use_cls_token` and `num_memory_tokens` as they are",
    "keys and passwords are masked by name, form and place; those two stay",
)
def test_settings_that_only_have_token_in_their_names_stay():
    given = {"use_cls_token": True, "num_memory_tokens": 4, "tracking_uri": "https://me:mine-1@h", "api_key": "mine-2"}
    assert masked(given, []) == {
        **{"use_cls_token": True, "num_memory_tokens": 4},
        **{"tracking_uri": "https://me:<SECRET>@h", "api_key": "<API_KEY>"},
    }


def test_text_is_masked_by_form_by_header_and_by_the_password_of_a_url():
    text = f"X-Api-Key: 0123456789ab; Authorization: Basic YWRhOnB3; https://me:mine-1@h/x glpat-{LETTERS[:20]}1"
    assert masked(text, []) == ("X-Api-Key: <SECRET> Authorization: Basic <SECRET> https://me:<SECRET>@h/x <SECRET>")
    for other in ("https://h:80/a@b", "bearer of the news", "see authorization: none", "mailto:a@b.org"):
        assert masked(other, []) == other
