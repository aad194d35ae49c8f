"""Under ZeRO 3 a model that is larger than a device is divided without being there as a whole."""

import subprocess

import pytest
from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled

from hmm_datasets.compat.deepspeed import without_zero3_init

PROGRAM = """
import os
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed, torch
from hmm_datasets.compat.deepspeed import weights_stay_until_sharded

class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("seen", torch.zeros(3))

    def to(self, *_):
        print("moved as a whole")
        return super().to(*_)

def sharded(model):
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    settings["zero_allow_untested_optimizer"] = True
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=settings)[0]

sent, send = [], deepspeed.comm.broadcast
deepspeed.comm.broadcast = lambda tensor, *given, **named: (sent.append(tensor), send(tensor, *given, **named))

sharded(Model())
often = len(sent)
model = Model()
before = model.weight.detach().clone()
with weights_stay_until_sharded(model):
    engine = sharded(model)
# Once, as it is divided, and not before, when it is not on the device.
assert (often, len(sent) - often) == (4, 2), (often, len(sent))
with deepspeed.zero.GatheredParameters([model.weight]):
    assert torch.equal(model.weight.cpu(), before)
assert "to" not in vars(model)

apart = Model()
with weights_stay_until_sharded(apart):
    assert apart.to("meta") is apart
print([name for name, tensor in [*apart.named_parameters(), *apart.named_buffers()] if tensor.is_meta])
"""


@pytest.mark.thorough
def test_deepspeed_divides_weights_that_are_not_on_its_device(warm_python, child_environment):
    pytest.importorskip("deepspeed")
    environment = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    result = subprocess.run(
        [warm_python, "-c", PROGRAM],
        env=child_environment | environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("moved as a whole") == 1, "without the context"
    assert result.stdout.splitlines()[-1] == "['seen']"


def test_a_rank_that_trains_under_zero_3_can_load_a_whole_model():
    config = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}})
    assert is_deepspeed_zero3_enabled()
    with without_zero3_init():
        assert not is_deepspeed_zero3_enabled()
    assert is_deepspeed_zero3_enabled()
    del config
    assert not is_deepspeed_zero3_enabled()
