"""A loss that is not finite ends the run before the optimizer uses its gradient, and what explains it is kept."""

import math
import socket
import time

import pytest
import torch
from bad_rows import FOREIGN, LENGTH, WithBadRows, rows_by_step, train_through
from bad_rows import model as bad_rows_model
from bad_rows import trainer as bad_rows_trainer
from safetensors.torch import load_file
from tiny_runs import tiny_model, trainer

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import append_jsonl, read_json
from hmm_datasets.runtime import environment
from hmm_datasets.runtime.events import read_events
from hmm_datasets.training.run import train_and_save


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_and_changes_no_weight(tmp_path, value):
    model = tiny_model()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    run = trainer(tmp_path, model=model)
    model.register_forward_hook(lambda module, inputs, output: setattr(output, "loss", output.loss * value))
    expected = r"^step 1: the loss is (nan|inf) on rank 0 \(.+\) in rows 0 to 3; see .*/nan-step-1; "
    with pytest.raises(InputError, match=expected + "no checkpoint is from before it: lower"):
        run.train()
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def nan_at_foreign_tokens(model):
    """Make the MLP of the second layer of a model return NaN at tokens that the HMM never emits."""
    seen = []

    def remember(module, inputs, output):
        seen[:] = [inputs[0] >= FOREIGN.start]

    model.model.embed_tokens.register_forward_hook(remember)
    model.model.layers[1].mlp.register_forward_hook(
        lambda module, inputs, output: output.masked_fill(seen[0][..., None], math.nan)
    )
    return model


def test_what_explains_it_is_kept(tmp_path):
    """Row 27 is in step 4, the second of the third micro-batch; all its tokens are foreign."""
    run = bad_rows_trainer(tmp_path, WithBadRows([27]), save_steps=1000)
    nan_at_foreign_tokens(run.model)
    expected = rf"^step 4: the loss is nan on rank 0 \({socket.gethostname()}\) in rows 26 to 27; see .*/nan-step-4; "
    with pytest.raises(InputError, match=expected):
        train_and_save(run, settings={}, data={})
    evidence = read_json(tmp_path / "nan-step-4" / "evidence.json")
    assert evidence["first_not_finite"]["module"] == "model.layers.1.mlp"
    assert evidence["first_not_finite"]["type"] == "LlamaMLP"
    assert evidence["first_not_finite"]["share"] == 0.5
    assert evidence["parameters_not_finite"] == []
    assert (evidence["step"], evidence["highest"]["rows"]) == (4, [26, 27])
    assert [math.isfinite(part["loss"]) for part in evidence["ranks"][0]["micro_batches"]] == [True, False, True, True]
    assert evidence["settings"]["learning_rate"] == 1e-2
    assert set(evidence["gradient"]["norms"]) == {name for name, _ in bad_rows_model().named_parameters()}
    kept = load_file(tmp_path / "nan-step-4" / "micro_batch.safetensors")
    rows = [WithBadRows([27])[row]["input_ids"] for row in (26, 27)]
    assert torch.equal(kept["input_ids"], torch.stack(rows))
    assert kept["losses"].shape == (2, LENGTH + 1)
    assert torch.isfinite(kept["losses"][0]).all()
    assert kept["losses"][1, :-1].isnan().all()
    (event,) = read_events(tmp_path)
    assert (event["kind"], event["step"], event["rank"]) == ("nan", 4, 0)


@pytest.mark.thorough
def test_the_checkpoint_before_it_is_named_and_watch_lists_the_step_until_the_run_has_passed_it(tmp_path, capsys):
    run = bad_rows_trainer(tmp_path, WithBadRows([27]), save_steps=2)
    nan_at_foreign_tokens(run.model)
    with pytest.raises(InputError, match=rf"; {tmp_path}/checkpoint-2 is from before it: lower the learning rate, "):
        train_and_save(run, settings={}, data={})
    assert main(["watch", str(tmp_path)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("NaN or infinite")]
    assert line.split(maxsplit=3)[3] == f"nan at step 4 on {environment.host()}"
    append_jsonl(tmp_path / "history.jsonl", {"step": 4, "time": time.time(), "loss": 1.0})
    main(["watch", str(tmp_path)])
    assert "NaN or infinite  none" in capsys.readouterr().out


@pytest.mark.thorough
def test_with_rollback_the_rows_are_passed_over(tmp_path):
    class Fragile(type(bad_rows_trainer(tmp_path, WithBadRows()))):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            nan_at_foreign_tokens(self.model)

    rows = WithBadRows([27])
    summary = train_through(
        tmp_path, rows, kind=Fragile, on_spike="rollback", spike_margin=0, save_steps=2, max_steps=6
    )
    assert summary["passed_over"] == [{"step": 4, "checkpoint": 2, "first": 24, "end": 32}]
    kept = [*range(24), *range(32, 56)]
    assert rows_by_step(tmp_path) == {step + 1: kept[8 * step : 8 * step + 8] for step in range(6)}
    assert [event["kind"] for event in read_events(tmp_path)] == ["nan", "rollback"]
