import pytest
import torch
from tiny_runs import history, losses, trainer


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/36360",
    "which operations the steps of a Trainer spend their time in, without a patch of the Trainer",
    "`torch.profiler.profile()` around `train()` has them, and losses stay the same",
)
def test_torchs_profiler_around_a_run_has_its_operations_and_changes_nothing(tmp_path):
    run = trainer(tmp_path / "profiled")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        recorded = losses(run)
    assert recorded == losses(trainer(tmp_path / "plain"))
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["aten::cross_entropy_loss"] == 2 * run.state.global_step, "one for each micro-batch"


def test_every_row_has_the_global_batch(tmp_path):
    run = trainer(tmp_path, batch_ramp=["4:2"])
    run.train()
    assert [row["global_batch_size"] for row in history(run)] == [4, 4, 8, 8, 8, 8]
    assert "loss_scale" not in history(run)[0]
