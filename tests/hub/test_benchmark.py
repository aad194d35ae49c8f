"""The benchmark by way of the Hub: its data set, a model, and the model's result, each by its name."""

import pytest
from experiments import load


@pytest.mark.thorough
def test_a_model_and_the_benchmark_come_from_the_hub_and_the_result_goes_there(local_hub, tmp_path):
    code = """
        import json, sys
        import datasets, yaml
        from huggingface_hub import HfApi, hf_hub_download
        from transformers import LlamaConfig, LlamaForCausalLM
        from hmm_datasets.cli import main
        data, model = "tester/hmm-benchmark", "tester/llama"
        main(["push", "data-set", data, "--repo_type", "dataset"])
        sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
        LlamaForCausalLM(LlamaConfig(vocab_size=17, bos_token_id=16, **sizes)).push_to_hub(model)
        loaded = datasets.load_dataset(data, "even", split="test")
        assert main(["benchmark", model, "--data", data]) == 0
        results = "benchmark-llama/.eval_results"
        HfApi().upload_folder(repo_id=model, folder_path=results, path_in_repo=".eval_results")
        result = yaml.safe_load(open(hf_hub_download(model, ".eval_results/hmm-benchmark.yaml")))
        report = json.load(open("benchmark-llama/report.json"))
        head = HfApi().dataset_info(data).sha
        print(json.dumps([result, report["mean"]["excess"], head, loaded.num_rows, HfApi().list_repo_files(model)]))
    """
    load("benchmark_models", "data_set").write_benchmark(tmp_path / "data-set")
    code = code.replace("import json, sys", "import json, os, sys; os.chdir(sys.argv[1])")
    [result], excess, head, rows, files = local_hub.child(code, tmp_path / "home", tmp_path)
    assert result["dataset"] == {"id": "tester/hmm-benchmark", "task_id": "ids", "revision": head}
    assert result["value"] == pytest.approx(excess, abs=1e-6)
    assert rows == 256
    assert {"model.safetensors", ".eval_results/hmm-benchmark.yaml"} <= set(files)
