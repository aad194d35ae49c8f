"""The names of other libraries that `hmm_datasets.compat` and the modules of training depend on.

A new release that changes one of these fails here first: the name of the test is the library and the name. What is to
be done then stands at the entry in `hmm_datasets/compat/`. What differs between versions that are admitted stands here
by the versions, and in a version of which nothing is expected the name is not used.
"""

import enum
import importlib
import importlib.metadata
import inspect
import types
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

SIGNATURES: dict[str, str | dict[str, str]] = {
    # The Trainer: compat/transformers.py.
    "transformers: Trainer.set_initial_training_values": "self args dataloader",
    "transformers: Trainer.get_batch_samples": "self epoch_iterator num_batches device",
    "transformers: Trainer.training_step": "self model inputs num_items_in_batch",
    "transformers: Trainer.compute_loss": "self model inputs return_outputs num_items_in_batch",
    "transformers: Trainer.log": "self logs start_time",
    "transformers: Trainer.floating_point_ops": "self inputs",
    "transformers: Trainer.store_flos": "self",
    "transformers: Trainer.evaluation_loop": (
        "self dataloader description prediction_loss_only ignore_keys metric_key_prefix"
    ),
    "transformers: Trainer.create_optimizer": "self model",
    "transformers: Trainer.create_scheduler": "self num_training_steps optimizer",
    "transformers: Trainer.get_decay_parameter_names": "self model",
    "transformers: Trainer.init_hf_repo": {"<5.23": "self token", ">=5.23": "self token private"},
    "transformers: Trainer._get_grad_norm": "self model grad_norm",
    "transformers: Trainer._track_num_input_tokens": "self inputs",
    "transformers: Trainer._set_signature_columns_if_needed": "self",
    "transformers: Trainer._save_checkpoint": "self model trial",
    "transformers: Trainer._get_output_dir": "self trial",
    "transformers: Trainer._finalize_training": "self trial num_train_samples start_time",
    "transformers: Trainer._save": "self output_dir state_dict",
    "transformers: Trainer.save_model": "self output_dir _internal_call",
    "transformers: Trainer._save_optimizer_and_scheduler": "self output_dir",
    "transformers: Trainer._prepare_for_training": "self max_steps train_dataloader resume_from_checkpoint",
    "transformers: Trainer._load_from_checkpoint": "self resume_from_checkpoint model",
    "transformers: Trainer._load_best_model": "self",
    "transformers: Trainer._load_optimizer_and_scheduler": "self checkpoint",
    "transformers: Trainer._load_scaler": "self checkpoint",
    "transformers: Trainer._load_rng_state": "self checkpoint",
    "transformers: Trainer._push_from_checkpoint": "self checkpoint_folder",
    "transformers: Trainer._finish_current_push": "self",
    "transformers: utils.hub.PushInProgress.__init__": "self jobs",
    "transformers: utils.hub.PushInProgress.is_done": "self",
    "transformers: utils.hub.PushInProgress.wait_until_done": "self",
    # Models and caches: compat/transformers_models.py, hmm/causal_lm.py.
    "transformers: PreTrainedModel._init_weights": "self module",
    "transformers: PreTrainedModel.register_for_auto_class": "auto_class",
    "transformers: PreTrainedModel.set_output_embeddings": "self new_embeddings",
    "transformers: PreTrainedConfig.register_for_auto_class": "auto_class",
    "transformers: Cache.get_seq_length": "self layer_idx",
    "transformers: Cache.get_max_cache_shape": {"<5.13": "self layer_idx"},
    "transformers: Cache.get_max_length": {">=5.13": "self layer_idx"},
    "transformers: Cache.reorder_cache": "self beam_idx",
    "transformers: Cache.batch_repeat_interleave": "self repeats",
    "transformers: Cache.batch_select_indices": "self indices",
    "transformers: Cache.crop": {"<5.15": "self max_length", ">=5.15": "self tokens_to_remove"},
    "transformers: masking_utils.find_packed_sequence_indices": "position_ids",
    "transformers: masking_utils.is_tracing": {"<5.18": "tensor"},
    "transformers: masking_utils.is_torchdynamo_exporting": {">=5.18": ""},
    "gguf: get_tensor_name_map": "arch n_blocks",
    "gguf: GGUFReader._get": "self offset dtype count override_order",
    "gguf: GGUFReader._get_field_parts": "self orig_offs raw_type",
    # What stands between ours and the Trainer.
    "trl: SFTTrainer._save_checkpoint": "self model trial",
    "trl: SFTTrainer._set_signature_columns_if_needed": "self",
    "trl: SFTTrainer.compute_loss": "self model inputs return_outputs num_items_in_batch",
    "trl: SFTTrainer.training_step": "self args kwargs",
    "trl: SFTTrainer.log": "self logs start_time",
    "trl: TrlParser.__init__": "self dataclass_types kwargs",
    "trl: TrlParser.parse_args_and_config": (
        "self args return_remaining_strings fail_with_unknown_args separate_remaining_strings"
    ),
    # compat/accelerate.py, and the optimizer of FSDP.
    "accelerate: state.AcceleratorState.__init__": (
        "self mixed_precision cpu dynamo_plugin deepspeed_plugin fsdp_plugin torch_tp_plugin megatron_lm_plugin "
        "parallelism_config _from_accelerator kwargs"
    ),
    "accelerate: utils.save_fsdp_optimizer": {
        "<1.15": "fsdp_plugin accelerator optimizer model output_dir optimizer_index",
        ">=1.15": "fsdp_plugin accelerator optimizer model output_dir optimizer_index use_dcp",
    },
    # compat/deepspeed.py.
    "deepspeed: DeepSpeedEngine.module_state_dict": "self destination prefix keep_vars exclude_frozen_parameters",
    "deepspeed: DeepSpeedEngine.load_universal_checkpoint": "self",
    "deepspeed: DeepSpeedEngine.zero_optimization_partition_weights": "self",
    "deepspeed: checkpoint.ds_to_universal.main": "args",
    "deepspeed: runtime.zero.muon.muon_optimizer.MuonWithAuxAdam.__init__": {
        ">=0.19.8": "self param_groups adam_optimizer adam_optimizer_kwargs adam_w_mode fallback_to_inline"
    },
    "deepspeed: runtime.zero.muon.original_muon.ns_compute_dtype": {">=0.19.8": "ns_method"},
    # compat/torch.py.
    "torch: optim._muon._zeropower_via_newtonschulz": {">=2.9": "grad ns_coefficients ns_steps eps"},
    # compat/datasets.py.
    "datasets: iterable_dataset._BaseExamplesIterable.shard_data_sources": "self num_shards index contiguous",
    "datasets: iterable_dataset._BaseExamplesIterable.shuffle_data_sources": "self generator",
    "datasets: iterable_dataset._BaseExamplesIterable.reshard_data_sources": "self",
    "datasets: iterable_dataset._BaseExamplesIterable._init_state_dict": "self",
    "datasets: iterable_dataset._BaseExamplesIterable.load_state_dict": "self state_dict",
    "datasets: iterable_dataset.ExamplesIterable.__init__": {
        "<5": "self generate_examples_fn kwargs generate_more_kwargs_fn",
        ">=5": "self generate_examples_fn kwargs generate_more_kwargs_fn sleep_on_threads_shutdown",
    },
    "datasets: ArrowBasedBuilder._get_examples_iterable_for_split": "self split_generator",
    "datasets: IterableDataset.__init__": "self ex_iterable info split formatting distributed token_per_repo_id",
    "datasets: builder.Key": "original_shard_id item_or_batch_id",
    # compat/torch.py.
    "torch: distributed.distributed_c10d._set_pg_timeout": "timeout group",
    "torch: distributed._tools.mem_tracker.MemTracker.track_external": "self external",
    "torch: distributed._tools.mem_tracker.MemTracker.get_tracker_snapshot": "self type",
    "torch: nn.Module._apply": "self fn recurse",
    # Used where it is documented, by arguments that have moved before.
    "huggingface_hub: HfApi.preupload_lfs_files": (
        "self repo_id additions token repo_type revision create_pr num_threads free_memory gitignore_content"
    ),
    "fastokens: Tokenizer.encode_batch_flat": "self inputs add_special_tokens split_special_tokens",
    "datatrove: pipeline.base.PipelineStep.run": "self data rank world_size",
}

KINDS: dict[str, Any] = {
    "transformers: trainer.SCHEDULER_NAME": str,
    "transformers: trainer.TRAINING_ARGS_NAME": str,
    "transformers: trainer_callback.ExportableState": type,
    "transformers: Trainer._load_best_model": types.FunctionType,
    "transformers: PreTrainedConfig._attn_implementation": property,
    "transformers: PreTrainedModel._supports_sdpa": bool,
    "transformers: PreTrainedModel._supports_flex_attn": bool,
    "transformers: PreTrainedModel._supports_flash_attn": bool,
    "transformers: PreTrainedModel._is_stateful": bool,
    "transformers: Cache.is_compileable": property,
    "transformers: GgufConfig": {">=5.17": type},
    "transformers: Cache.is_croppable": {">=5.17": property},
    "transformers: integrations.INTEGRATION_TO_CALLBACK": dict,
    "transformers: utils.chat_template_utils.datetime": type,
    "transformers: modeling_gguf_pytorch_utils.tqdm": type,
    "accelerate: state.PartialState._shared_state": dict,
    "accelerate: state.DistributedType": enum.EnumMeta,
    "datasets: packaged_modules._PACKAGED_DATASETS_MODULES": dict,
    "datasets: formatting._FORMAT_TYPES": dict,
    "datasets: iterable_dataset._BaseExamplesIterable.iter_arrow": property,
    "datasets: iterable_dataset._BaseExamplesIterable.is_typed": property,
    "datasets: iterable_dataset._BaseExamplesIterable.features": property,
    "datasets: iterable_dataset._BaseExamplesIterable.num_shards": property,
    "datasets: iterable_dataset._BaseExamplesIterable.sleep_on_threads_shutdown": {">=5": property},
    "torch: distributed.distributed_c10d._world.pg_map": dict,
    "torch: _subclasses.fake_tensor.FakeTensorMode": type,
    "huggingface_hub: utils.httpx.HTTPError": type,
    "huggingface_hub: utils.httpx.InvalidURL": type,
    "huggingface_hub: utils.httpx.TransportError": type,
    "huggingface_hub: utils.httpx.TimeoutException": type,
    "huggingface_hub: utils.httpx.UnsupportedProtocol": type,
    "huggingface_hub: utils.httpx.LocalProtocolError": type,
}


def of_installed(name: str, expected: Any) -> Any:
    """What is expected of a name in the installed version of its library, by the specifier that admits it."""
    if not isinstance(expected, dict):
        return expected
    library = name.partition(":")[0]
    pytest.importorskip(library)
    version = importlib.metadata.version(library)
    admitted = [value for bound, value in expected.items() if SpecifierSet(bound).contains(version, prereleases=True)]
    if not admitted:
        pytest.skip(f"{library} {version} is none of {', '.join(expected)}")
    (value,) = admitted
    return value


def found(name: str) -> Any:
    """What a name such as `torch: nn.Module._apply` stands for; skips where an extra is not installed."""
    library, path = name.split(": ")
    value = pytest.importorskip(library)
    parts = path.split(".")
    for number, part in enumerate(parts):
        if not hasattr(value, part):
            with_module = ".".join([library, *parts[: number + 1]])
            try:
                value = importlib.import_module(with_module)
            except ModuleNotFoundError as error:
                pytest.fail(f"{library} {importlib.metadata.version(library)} has no {path} ({error})")
        else:
            value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", SIGNATURES)
def test_it_takes_these_arguments(name):
    expected = of_installed(name, SIGNATURES[name])
    assert " ".join(inspect.signature(found(name)).parameters) == expected


@pytest.mark.parametrize("name", KINDS)
def test_it_is_of_this_kind(name):
    kind = of_installed(name, KINDS[name])
    value = found(name)
    assert isinstance(value, kind) or (kind is bool and value in (True, False))


def test_transformers_returns_the_length_of_a_training_in_seven_values():
    from transformers import Trainer

    notes = inspect.get_annotations(Trainer.set_initial_training_values)["return"]
    assert len(notes.__args__) == 7


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "current_gradient_accumulation_steps",  # made in the loop, divided by in `training_step`
        "_signature_columns",
        "push_in_progress",
        "current_flos",
        "model_wrapped",
        "callback_handler",
    ],
)
def test_transformers_trainer_has_this_attribute(name):
    from transformers import Trainer

    assert f"self.{name} = " in inspect.getsource(Trainer) or f"self.{name}: " in inspect.getsource(Trainer)


def test_transformers_writes_a_checkpoint_below_the_folder_that_get_output_dir_names():
    from transformers import Trainer

    source = inspect.getsource(Trainer._save_checkpoint)
    order = ["_get_output_dir(", "self.save_model(", "_save_optimizer_and_scheduler(", "_save_rng_state("]
    order += ["TRAINER_STATE_NAME", "_push_from_checkpoint("]
    positions = [source.index(part) for part in order]
    assert positions == sorted(positions)


def test_transformers_calls_save_in_every_branch_of_save_model_and_pushes_only_for_users():
    from transformers import Trainer

    source = inspect.getsource(Trainer.save_model)
    assert source.count("self._save(") >= 3
    assert "not _internal_call" in source


def test_accelerate_keeps_its_mixed_precision_where_it_is_read():
    from accelerate.state import AcceleratorState, DistributedType

    source = inspect.getsource(AcceleratorState)
    assert "self._mixed_precision = " in source
    assert 'PartialState._shared_state["distributed_type"] = self.distributed_type' in source
    assert DistributedType.MULTI_CPU != DistributedType.FSDP


def test_accelerate_still_leaves_cpu_processes_out_of_fsdp():
    """Once it does not, `compat/accelerate.py` can go."""
    from accelerate.state import AcceleratorState

    source = inspect.getsource(AcceleratorState.__init__)
    (listed,) = [part for part in source.split("elif ") if "ACCELERATE_USE_FSDP" in part]
    assert "DistributedType.MULTI_CPU" not in listed.partition("ACCELERATE_USE_FSDP")[0]


def test_deepspeed_reads_the_setting_for_universal_checkpoints_where_it_is_written():
    deepspeed = pytest.importorskip("deepspeed")

    source = inspect.getsource(deepspeed.DeepSpeedEngine.load_universal_checkpoint)
    assert "self._config.load_universal_checkpoint" in source
    assert "self.load_universal_checkpoint = " in inspect.getsource(deepspeed.DeepSpeedConfig)


def test_deepspeed_converts_to_the_universal_form_by_these_arguments():
    import re

    module = pytest.importorskip("deepspeed.checkpoint.ds_to_universal")
    assert set(re.findall(r"\bargs\.(\w+)", inspect.getsource(module))) == {
        "input_folder",
        "output_folder",
        "num_extract_workers",
        "num_merge_workers",
        "keep_temp_folder",
        "strict",
        "inject_missing_state",
    }


@pytest.mark.parametrize("name", ["ds_numel", "ds_shape", "ds_tensor"])
def test_deepspeed_leaves_this_on_a_parted_parameter(name):
    module = pytest.importorskip("deepspeed.runtime.zero.partition_parameters")
    assert f"param.{name} = " in inspect.getsource(module)


def test_deepspeed_stage_3_keeps_the_flat_groups_that_a_rank_optimizes():
    stage_3 = pytest.importorskip("deepspeed.runtime.zero.stage3")
    assert "self.fp32_partitioned_groups_flat" in inspect.getsource(stage_3.DeepSpeedZeroOptimizer_Stage3)


def test_datasets_names_module_and_hash_for_every_builder():
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as table

    assert all(isinstance(module, str) and isinstance(version, str) for module, version in table.values())
    assert table["json"][0] == "datasets.packaged_modules.json.json"


def test_datasets_holds_the_state_that_rows_change_in_place():
    from datasets.iterable_dataset import _BaseExamplesIterable

    rows = _BaseExamplesIterable()
    assert rows._state_dict is None
    rows._state_dict = {"next": 3, "type": "X"}
    assert rows.state_dict() == {"next": 3, "type": "X"}


def test_torch_lists_activations_and_temporaries_of_one_device():
    import torch

    from hmm_datasets.compat.torch import fake_tensors, tracked_memory

    with fake_tensors():
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
        with tracked_memory(model) as peak:
            model(torch.zeros(32, 64)).sum().backward()
        assert peak() >= 32 * 256 * 4


@pytest.mark.thorough
def test_pomegranate_keeps_places_of_edges_by_their_states():
    torch = pytest.importorskip("torch")
    pytest.importorskip("pomegranate")
    from hmm_datasets.compat.pomegranate import import_pomegranate, sparse_transition

    package = import_pomegranate()
    nodes = [package.distributions.Categorical([[0.5, 0.5]]) for _ in range(2)]
    edges = [[nodes[0], nodes[1], 0.25], [nodes[0], nodes[0], 0.75], [nodes[1], nodes[1], 1.0]]
    model = package.hmm.SparseHMM(nodes, edges=edges, starts=[0.5, 0.5], ends=[0.0, 0.0])
    transition = sparse_transition(model, 2)
    assert torch.tensor(transition).allclose(torch.tensor([[0.75, 0.25], [0.0, 1.0]], dtype=torch.float64))


def test_datatrove_makes_its_tokenizer_in_a_cached_property():
    import functools

    pytest.importorskip("datatrove")
    from datatrove.pipeline.tokens import DocumentTokenizer

    (made,) = [vars(kind)["tokenizer"] for kind in DocumentTokenizer.__mro__ if "tokenizer" in vars(kind)]
    assert isinstance(made, functools.cached_property)


@pytest.mark.thorough
def test_matplotlib_draws_without_pyplot():
    """`Figure.savefig` alone chooses what draws a file, which the documentation advises for servers."""
    import subprocess
    import sys

    code = "import sys, hmm_datasets.report.evaluation_plots; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
