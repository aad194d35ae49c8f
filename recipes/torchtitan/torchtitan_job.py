"""Continue a run in torchtitan 0.3, with tensor, pipeline or context parallelism.

`write_job.py` copies this file and `rows_of_job.py` beside the model and `job.json`. torchtitan imports it by
`--module torchtitan_job --config job`, with FOLDER in PYTHONPATH; its flags override what is here, but for the number
of steps, which is that of `job.json`. Rows are those that the run would have read next, in the same order, on any
number of data-parallel ranks. AdamW starts anew, with a warm-up.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rows_of_job import batches_of_rank, read_job
from torch import nn
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.llama3 import Llama3Model, parallelize_llama
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

FOLDER = Path(__file__).resolve().parent
WARM_UP = 0.05
"""Share of the steps in which the learning rate rises, since AdamW starts anew."""


class RowLoader(BaseDataLoader):
    """The rows of the run. Its state is how many the ranks have read together, so the number of ranks may change."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """`num_workers`: processes per rank that read rows."""

        num_workers: int = 2

    def __init__(self, config, *, dp_world_size, dp_rank, seq_len, local_batch_size, **unused):
        self.rows, self.row = read_job(FOLDER)["rows"], 0
        self.rows_at_once = dp_world_size * local_batch_size
        self.layout = {"size": local_batch_size, "rank": dp_rank, "ranks": dp_world_size, "length": seq_len}
        self.layout |= {"num_workers": config.num_workers}

    def __iter__(self):
        for tokens, labels in batches_of_rank(self.rows, first=self.row, **self.layout):
            self.row += self.rows_at_once
            yield {"input": tokens}, labels

    def state_dict(self):
        return {"row": self.row}

    def load_state_dict(self, state_dict):
        self.row = state_dict.get("row", self.row)


def model(shape: dict, max_seq_len: int) -> Llama3Model.Config:
    """The configuration of a Llama of this shape, for rows of at most so many tokens."""
    dim, words = shape["dim"], shape["vocab_size"]
    init = {"weight": partial(nn.init.normal_, std=shape["initializer_range"])}
    norm = partial(RMSNorm.Config, normalized_shape=dim, eps=shape["norm_eps"], param_init={"weight": nn.init.ones_})
    layers = [
        Llama3TransformerBlock.Config(
            attention_norm=norm(),
            ffn_norm=norm(),
            attention=make_gqa_config(
                dim=dim,
                n_heads=shape["n_heads"],
                n_kv_heads=shape["n_kv_heads"],
                head_dim=shape["head_dim"],
                wqkv_param_init=init,
                wo_param_init=init,
                inner_attention=ScaledDotProductAttention.Config(),  # rows are one document to attention
                rope=ComplexRoPE.Config(dim=shape["head_dim"], max_seq_len=max_seq_len, **shape["rope"]),
                fuse_qkv=True,
            ),
            feed_forward=make_ffn_config(
                dim=dim, hidden_dim=shape["hidden_dim"], w1_param_init=init, w2w3_param_init=init
            ),
        )
        for _ in range(shape["n_layers"])
    ]
    return Llama3Model.Config(
        dim=dim,
        vocab_size=words,
        enable_weight_tying=shape["enable_weight_tying"],
        tok_embeddings=Embedding.Config(num_embeddings=words, embedding_dim=dim, param_init=init),
        norm=norm(),
        lm_head=Linear.Config(in_features=dim, out_features=words, param_init=init),
        layers=layers,
    )


def job() -> Trainer.Config:
    """The configuration that `--config job` names."""
    content = read_job(FOLDER)
    training, length = content["training"], content["row_length"]
    spec = ModelSpec(
        name="llama3",
        flavor=FOLDER.name,
        model=model(content["model"], 2 * length),  # sequence parallelism may need a larger seq_len; rows are padded
        parallelize_fn=parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=Llama3StateDictAdapter,
    )
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path=str(FOLDER),
        loss=CrossEntropyLoss.Config(),
        dataloader=RowLoader.Config(),
        optimizer=default_adamw(
            training["learning_rate"],
            betas=(training["adam_beta1"], training["adam_beta2"]),
            eps=training["adam_epsilon"],
            weight_decay=training["weight_decay"],
        ),
        lr_scheduler=LRSchedulersContainer.Config(
            warmup_steps=round(WARM_UP * training["steps"]), decay_type="cosine", min_lr_factor=0.1
        ),
        training=TrainingConfig(
            local_batch_size=training["local_batch_size"],
            global_batch_size=training["global_batch_size"],
            seq_len=length,
            steps=training["steps"],
            max_norm=training["max_grad_norm"] or float("inf"),
        ),
        # With a released torch (2.13), FSDP2 refuses the weights of the default, spmd_types, on several ranks.
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        checkpoint=CheckpointManager.Config(
            enable=True, initial_load_path=str(FOLDER), initial_load_in_hf=True, last_save_in_hf=True
        ),
    )
