"""ChatCORE: what is asked and how it is judged, by hand; the harness's own model; the figure; and the Hub."""

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
from bubblewrap import WORKS, needs_bubblewrap
from hub_processes import LocalHub
from local_hub.repositories import Repositories
from tiny_chat import save_tiny_chat
from transformers import AutoModelForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.chat.measures import share
from hmm_datasets.evaluation.chat_core import score as tasks
from hmm_datasets.evaluation.chat_core.harness_tasks import functions
from hmm_datasets.evaluation.chat_core.sandbox import check_sandbox
from hmm_datasets.evaluation.chat_core.score import chat_core_summary
from hmm_datasets.evaluation.evaluation import EvaluationSettings, evaluate_model
from hmm_datasets.evaluation.tasks import open_subject
from hmm_datasets.hub.kinds.evaluation import metrics_of
from hmm_datasets.training.post_training.rewards import gsm8k

ANSWER = "He has 1,150 + 50 = 1,200.\n#### 1200"


@pytest.mark.parametrize(
    ("said", "in_format"),
    [
        ("So it is\n#### 1200", True),
        ("#### 1,200.00", True),
        ("#### $1,200.", True),
        ("#### 12\nNo:\n#### 1200", True),
        ("It is 1,200 dollars.", False),
        ("1200 ####", False),
        ("#### 1201", True),
        ("#### twelve", False),
        ("1200, or 1300", False),
        ("", False),
    ],
)
def test_an_answer_to_gsm8k_is_right_where_our_reward_is_one(said, in_format):
    found = functions.judge_number({"answer": ANSWER}, [said])
    assert found["correct"] == found["exact"] == gsm8k([said], answer=[ANSWER])[0]
    assert found["in_format"] == in_format
    assert found["chance"] == 0


def test_a_choice_is_the_likeliest_letter_and_in_format_if_it_is_the_likeliest_token():
    row = {"choices": {"label": ["A", "B", "C"], "text": ["x", "y", "z"]}, "answerKey": "B"}

    def judged(*scores):
        found = functions.judge_arc(row, scores)
        assert found.pop("chance") == pytest.approx(1 / 3)
        return found

    likely = {"correct": 1, "exact": 0, "in_format": 0}
    assert judged((-3.0, False), (-2.0, False), (-4.0, False)) == likely
    assert judged((-3.0, False), (-0.1, True), (-4.0, False)) == {"correct": 1, "exact": 1, "in_format": 1}
    assert judged((-0.1, True), (-2.0, False), (-4.0, False)) == {"correct": 0, "exact": 0, "in_format": 1}
    assert judged(*[(-math.inf, False)] * 3) == dict.fromkeys(likely, 0)  # too long to be asked


def test_a_question_says_its_choices_and_asks_for_the_letter():
    row = {"question": " Which? ", "choices": {"label": ["1", "2"], "text": ["red", "blue "]}, "answerKey": "2"}
    said = "Question: Which?\n1. red\n2. blue\n\nAnswer with the letter of the right choice alone."
    assert functions.arc_question(row) == said
    assert functions.arc_letters(row)[functions.arc_answer(row)] == "2"


PROBLEM = {
    "prompt": 'import math\n\ndef half(x):\n    return x / 2\n\ndef root(x):\n    """The root of half of x."""\n',
    "entry_point": "root",
    "test": "def check(f):\n    assert f(8) == 2\n    assert f(18) == 3",
}


@pytest.mark.launch
@needs_bubblewrap
@pytest.mark.parametrize(
    ("said", "correct", "in_format"),
    [
        ("```python\ndef root(x):\n    return math.sqrt(half(x))\n```", 1, 1),
        ("Here:\n```python\ndef root(x):\n    return (x / 2) ** 0.5\n```\nIt halves.", 1, 1),
        ("```\ndef root(x):\n    return math.sqrt(half(x))", 1, 1),
        ("    return math.sqrt(half(x))", 1, 0),  # the body alone
        ("```python\ndef root(x):\n    return 2\n```", 0, 1),
        ("I cannot.", 0, 0),
        ("", 0, 0),
    ],
)
def test_a_function_is_right_if_its_tests_pass(said, correct, in_format):
    found = functions.judge_program(PROBLEM, [said])
    assert (found["correct"], found["in_format"]) == (correct, in_format)


def test_the_figure_is_the_mean_of_what_is_above_chance():
    def sample(task, index, correct, chance, **more):
        return {"doc_hash": f"{task}{index}", "arguments": [(f"{task} {index}", "A")], "correct": correct,
                "exact": 0.0, "chance": chance, **more}  # fmt: skip

    chances = [1 / 4, 1 / 4, 1 / 3, 1 / 5]
    samples = {
        "arc_easy": [sample("arc", i, float(i < 3), chance, in_format=1.0) for i, chance in enumerate(chances)],
        "ifeval": [sample("if", i, float(i < 1), 0.0) for i in range(5)],
    }
    found = chat_core_summary(samples, {"if 4"}, max_per_task=5)
    chance = np.mean(chances)
    assert found["tasks"]["arc_easy"]["baseline"] == pytest.approx(chance)
    assert found["tasks"]["arc_easy"]["centered"] == pytest.approx((0.75 - chance) / (1 - chance))
    assert found["score"] == pytest.approx(((0.75 - chance) / (1 - chance) + 0.2) / 2)
    assert found["low"] < found["score"] < found["high"]
    assert found["name"] == "ChatCORE of arc_easy, ifeval, at most 5 questions per task"
    wilson = share(3, 4)
    assert found["tasks"]["arc_easy"]["accuracy_low"] == wilson["low"]
    assert found["tasks"]["arc_easy"]["accuracy_high"] == wilson["high"]
    assert found["tasks"]["arc_easy"]["in_format"] == share(4, 4)
    assert found["tasks"]["ifeval"]["in_format"] is None
    assert found["tasks"]["ifeval"]["too_long"] == 1


def test_code_is_run_only_with_permission(tmp_path):
    name = str(tmp_path)
    with pytest.raises(InputError, match="allow it with --chat_core_run_code true"):
        EvaluationSettings(name, tasks=["chat_core"], chat_core_tasks=["gsm8k", "humaneval"])
    EvaluationSettings(name, tasks=["chat_core"], chat_core_tasks=["humaneval"], chat_core_run_code=True)
    assert "humaneval" not in EvaluationSettings(name).chat_core_tasks


@pytest.mark.parametrize("names", [["gsm9k"], [], ["mmlu", "mmlu"]])
def test_unknown_tasks_are_refused(names):
    with pytest.raises(InputError, match="chat_core_tasks"):
        EvaluationSettings("x", chat_core_tasks=names)


def test_what_is_not_installed_is_said_before_any_work(monkeypatch):
    def without(*names):
        real = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else real(name) or True)

    without("lm_eval")
    with pytest.raises(InputError, match=r'lm_eval cannot be imported; .*"hmm-datasets\[lm-eval\]"'):
        tasks.load_tasks(["gsm8k"])
    monkeypatch.undo()
    without("langdetect", "immutabledict")
    with pytest.raises(InputError, match=r"langdetect and immutabledict cannot be imported.*leave ifeval out"):
        tasks.load_tasks(["gsm8k", "ifeval"])
    tasks.check_requirements(["gsm8k", "mmlu"])


@pytest.mark.parametrize("works", [False, None])
def test_humaneval_is_refused_where_there_is_no_bubblewrap_or_it_fails(works, monkeypatch, tmp_path):
    if works is False:
        (tmp_path / "bwrap").write_text("#!/bin/sh\necho bwrap: No permissions >&2\nexit 1\n")
        (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = (
        "is not here; install it with apt install bubblewrap, or leave" if works is None else "No permissions.*sysctl"
    )
    check_sandbox.cache_clear()
    try:
        with pytest.raises(InputError, match=said):
            tasks.check_requirements(["humaneval"])
        with pytest.raises(InputError, match=said):  # so it is under the harness's own command
            functions.judge_program(PROBLEM, ["```python\ndef root(x):\n    return 2\n```"])
    finally:
        check_sandbox.cache_clear()


def test_ifeval_is_refused_without_the_rules_of_sentences(monkeypatch, tmp_path):
    import nltk

    asked = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    monkeypatch.setattr(nltk, "download", lambda name, quiet: asked.append(name))
    with pytest.raises(InputError, match="punkt_tab, which is not here and cannot be downloaded"):
        tasks.check_requirements(["ifeval"])
    assert asked == ["punkt_tab"]
    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    tasks.check_requirements(["ifeval"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def model(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_tiny_chat(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def requests(kind, *arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, doc={}, arguments=one, idx=0) for one in arguments]


def prompts_of(tokenizer):
    messages = [[{"role": "user", "content": f"Say {word}."}] for word in ("one", "two", "three", "four")]
    return messages, [
        tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in messages
    ]


def test_scores_and_answers_are_those_of_the_harness(model, tokenizer):
    from lm_eval.models.huggingface import HFLM

    from hmm_datasets.evaluation.chat_core.language_model import ChatLanguageModel

    messages, prompts = prompts_of(tokenizer)
    ours = ChatLanguageModel(model, tokenizer, batch_size=3)
    theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=3, add_bos_token=False)
    assert [ours.apply_chat_template(one) for one in messages] == [theirs.apply_chat_template(one) for one in messages]
    pairs = [(prompt, letter) for prompt in prompts for letter in "ABCD"]
    found, expected = (one.loglikelihood(requests("loglikelihood", *pairs)) for one in (ours, theirs))
    assert [nats for nats, _ in found] == pytest.approx([nats for nats, _ in expected], abs=1e-4)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    wanted = [(prompt, {"until": [], "do_sample": False, "max_gen_toks": 8}) for prompt in prompts]
    assert ours.generate_until(requests("generate_until", *wanted)) == theirs.generate_until(
        requests("generate_until", *wanted)
    )


class Sees:
    """A model that records the rows it is given, and always says the same token."""

    def __init__(self, model, token):
        self.config, self.generation_config, self.device = model.config, model.generation_config, model.device
        self.forward, self.training, self.rows, self.token = self, False, [], token

    def eval(self):
        return self

    def train(self, mode=True):
        return self

    def __call__(self, input_ids, attention_mask=None, use_cache=False):
        if attention_mask is not None:  # not the trial whether a cache can be used
            self.rows += [row[mask == 1].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)]
        logits = torch.zeros(*input_ids.shape, self.config.vocab_size)
        logits[..., self.token] = 5
        return type("Output", (), {"logits": logits})

    def generate(self, input_ids, attention_mask, max_new_tokens, **_):
        self(input_ids, attention_mask)
        return torch.cat([input_ids, torch.full((len(input_ids), max_new_tokens), self.token)], dim=1)


@pytest.mark.parametrize("template", ["ours", "line break"])
def test_a_prompt_is_the_chat_template_and_no_more(model, tokenizer, template, monkeypatch):
    """Also for a tokenizer that puts BOS before every text, and a template whose prompt ends in a line break."""
    from tokenizers.processors import TemplateProcessing

    from hmm_datasets.evaluation.chat_core.language_model import ChatLanguageModel

    begin = (tokenizer.bos_token, tokenizer.bos_token_id)
    before = tokenizer.backend_tokenizer.post_processor
    if template == "line break":
        marked = (
            "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
        )
        monkeypatch.setattr(tokenizer, "chat_template", marked)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    try:
        letter = tokenizer.encode("B", add_special_tokens=False)[-1]
        sees = Sees(model, letter)
        ours = ChatLanguageModel(sees, tokenizer)
        messages, prompts = prompts_of(tokenizer)
        pairs = [(prompt, letter) for prompt in prompts for letter in "ABCD"]
        scores = ours.loglikelihood(requests("loglikelihood", *pairs))
        assert [greedy for _, greedy in scores] == [False, True, False, False] * 4
        said = ours.generate_until(requests("generate_until", (prompts[0], {"max_gen_toks": 3})))
        assert said == ["BBB"]
        expected = [
            tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False) for one in messages
        ]
        assert {tuple(row) for row in sees.rows} == {tuple(row) for row in expected}
        assert all(row.count(begin[1]) == expected[0].count(begin[1]) <= 1 for row in sees.rows)
        assert all(prompt.count("Say ") == 1 for prompt in prompts)
    finally:
        tokenizer.backend_tokenizer.post_processor = before


def test_a_question_that_is_too_long_is_not_asked(model, tokenizer):
    from hmm_datasets.evaluation.chat_core.language_model import ChatLanguageModel

    ours = ChatLanguageModel(Sees(model, tokenizer.encode("B", add_special_tokens=False)[-1]), tokenizer)
    _, (short, *_) = prompts_of(tokenizer)
    long = short.replace("one", "one " * 80)
    scores = ours.loglikelihood(requests("loglikelihood", (long, "A"), (short, "A"), (long, "B"), (short, "B")))
    assert [nats > -math.inf for nats, _ in scores] == [False, True, False, True]
    answers = ours.generate_until(
        requests("generate_until", (long, {"max_gen_toks": 512}), (short, {"max_gen_toks": 512}))
    )
    assert answers[0] == ""
    assert answers[1] == "B" * 32  # half of the context, though 512 were asked for
    assert ours.too_long == {long}


def test_it_runs_only_if_it_is_named(tmp_path):
    save_tiny_chat(tmp_path)
    assert open_subject(EvaluationSettings(str(tmp_path))).tasks == ["completions"]
    assert open_subject(EvaluationSettings(str(tmp_path), tasks=["chat_core"])).tasks == ["chat_core"]


def test_a_base_model_is_refused(tmp_path):
    tokenizer = save_tiny_chat(tmp_path)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(InputError, match="task chat_core: the model's tokenizer has no chat template"):
        evaluate_model(EvaluationSettings(str(tmp_path), tasks=["chat_core"]))


def test_a_card_gets_the_figure_with_its_tasks_and_each_accuracy():
    task = {"accuracy": 0.5, "data": "openai/gsm8k main"}
    metrics, _ = metrics_of({"chat_core": {"name": "ChatCORE of gsm8k", "score": 0.5, "tasks": {"gsm8k": task}}})
    assert [(found["name"], found["value"], found["unit"]) for found in metrics] == [
        ("ChatCORE of gsm8k", 0.5, "centered accuracy"),
        ("Accuracy on openai/gsm8k main", 0.5, "accuracy"),
    ]


GSM8K = [("Ann", "#### 18"), ("Bob", "#### 1200"), ("Cy", "#### 7"), ("Dee", "#### 3")]
ARC = [("east", 4, 1), ("west", 4, 2), ("north", 3, 1), ("south", 5, 4)]
"""Name, number of choices and right one; the third has digits for letters."""
SAID = {
    **{"Ann": "18 of them.\n#### 18", "Bob": "It is 1,200.", "Cy": "#### 5", "Dee": "I do not know."},
    **{"east": "B", "west": "Well, C", "north": "1", "south": "E"},
    "root(x)": "```python\ndef root(x):\n    return math.sqrt(half(x))\n```",
    **{"first": "A", "second": "A", "third": "A", "fourth": "A"},
}
LIKELIEST = {"west": "C"}

EVALUATE = """
    import json, sys
    from pathlib import Path
    import torch
    from huggingface_hub import HfApi, ModelCard
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from hmm_datasets.evaluation.chat_core.score import measure_chat_core
    from hmm_datasets.evaluation.chat_core.score import load_tasks
    from hmm_datasets.evaluation.evaluation import EvaluationSettings, evaluate_model
    from hmm_datasets.errors import InputError
    from hmm_datasets.hub.kinds.evaluation import push_results
    from hmm_datasets.evaluation.comparison import compare_reports, comparison_text
    from hmm_datasets.text.tokenizers.bpe import train_bpe
    from hmm_datasets.text.tokenizers.chat_templates import end_of_turn

    root, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    api, found = HfApi(), {}
    tokenizer = train_bpe(["Question: Say A. B. C. D. one two three."] * 8, 280, show_progress=False)
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                             num_attention_heads=2, max_position_embeddings=512, initializer_range=0.5)
        LlamaForCausalLM(config).save_pretrained(root / f"model-{seed}")
        tokenizer.save_pretrained(root / f"model-{seed}")
        settings = EvaluationSettings(str(root / f"model-{seed}"), tasks=["chat_core"], chat_core_max_per_task=3,
                                      chat_core_tasks=["mmlu", "arc_easy"])
        report = evaluate_model(settings)
    found["compared"] = compare_reports([root / f"model-{seed}" / "evaluation" for seed in (0, 1)])
    found["text"] = comparison_text(found["compared"])
    found["rows"] = [json.loads(line) for line in (root / "model-1/evaluation/items/chat_core.jsonl").open()]
    found["page"] = (root / "model-1/evaluation/report.html").read_text()
    found["report"] = report

    api.create_repo("tester/chat")
    ModelCard("---\\nlicense: mit\\n---\\n# A chat model\\n").save(root / "README.md")
    api.upload_file(path_or_fileobj=root / "README.md", path_in_repo="README.md", repo_id="tester/chat")
    push_results(report, "tester/chat")
    found["card"] = [result.metric_name for result in ModelCard.load("tester/chat").data.eval_results]

    class Knows:
        # Says what is planned for the name in the prompt; among the letters another one may be likelier.
        def __init__(self, model):
            self.config, self.generation_config, self.device = model.config, model.generation_config, model.device
            self.forward, self.training = self, False
            self.assistant, self.end = tokenizer.convert_tokens_to_ids("<|assistant|>"), end_of_turn(tokenizer)

        def eval(self):
            return self

        def train(self, mode=True):
            return self

        def __call__(self, input_ids, attention_mask=None, use_cache=False):
            logits = torch.zeros(*input_ids.shape, len(tokenizer))
            for row, scores in zip(input_ids.tolist(), logits):
                names = [name for name in plan["said"] if name in tokenizer.decode(row)]
                if not names:  # the trial whether a cache can be used
                    continue
                (name,), first = names, row.index(self.assistant)
                answer = [*tokenizer.encode(plan["said"][name], add_special_tokens=False), self.end]
                for index in range(first, len(row)):
                    scores[index, answer[min(index - first, len(answer) - 1)]] = 9
                if name in plan["likeliest"]:
                    scores[first, tokenizer.encode(plan["likeliest"][name], add_special_tokens=False)[-1]] = 5
            return type("Output", (), {"logits": logits})

        def generate(self, input_ids, attention_mask, max_new_tokens, eos_token_id, pad_token_id, **_):
            done = torch.zeros(len(input_ids), dtype=torch.bool)
            for _ in range(max_new_tokens):
                token = self(input_ids, attention_mask).logits[:, -1].argmax(-1).masked_fill(done, pad_token_id)
                input_ids = torch.cat([input_ids, token[:, None]], dim=1)
                done |= torch.isin(token, torch.tensor(eos_token_id))
                if done.all():
                    break
            return input_ids

    model = AutoModelForCausalLM.from_pretrained(root / "model-0")
    names = plan["names"]
    found["known"] = measure_chat_core(Knows(model), tokenizer, load_tasks(names), batch_size=3)
    try:
        load_tasks(["arc_challenge"])
    except InputError as error:
        found["missing"] = str(error)
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, warm_python):
    """Evaluations against a local Hub with tiny data sets, whose columns are those of the true ones."""
    letters = [list("ABCD"), list("ABCD"), list("123"), list("ABCDE")]
    arc = [
        {
            "id": name,
            "question": f"Where is {name}?",
            "choices": {"text": [f"place {number}" for number in range(count)], "label": letter},
            "answerKey": letter[right],
        }
        for (name, count, right), letter in zip(ARC, letters, strict=True)
    ]
    mmlu = [
        {"question": f"The {name}?", "subject": "order", "choices": ["w", "x", "y", "z"], "answer": index}
        for index, name in enumerate(("first", "second", "third", "fourth"))
    ]
    data = {
        "openai/gsm8k": {
            "main": [{"question": f"How many has {name}?", "answer": f"So.\n{answer}"} for name, answer in GSM8K]
        },
        "allenai/ai2_arc": {"ARC-Easy": arc},
        "cais/mmlu": {"all": mmlu},
        "openai/openai_humaneval": {
            "openai_humaneval": [{"task_id": "HumanEval/0", **PROBLEM, "canonical_solution": "    return 0\n"}]
        },
    }
    root = tmp_path_factory.mktemp("chat_core")
    kept = Repositories(root / "hub")
    for repo, configs in data.items():
        header, files = ["---", "configs:"], {}
        for name, rows in configs.items():
            header += [f"- config_name: {name}", "  data_files:", "  - split: test", f"    path: {name}/test.jsonl"]
            files[f"{name}/test.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
        kept.create("datasets", repo, False, files | {"README.md": "\n".join([*header, "---", ""]).encode()})
    hub = LocalHub(root / "hub", python=warm_python)
    try:
        names = ["mmlu", "arc_easy", "gsm8k"]
        plan = {"said": SAID, "likeliest": LIKELIEST, "names": ["humaneval"] * WORKS + names}
        return hub.child(EVALUATE, root / "home", root / "work", json.dumps(plan))
    finally:
        hub.stop()


@pytest.mark.launch
def test_a_model_whose_answers_are_known_gets_the_results_computed_by_hand(evaluated):
    found = evaluated["known"]
    counts = {
        name: [task["items"], task["accuracy"], task["exact"]["count"], task["in_format"]["count"]]
        for name, task in found["tasks"].items()
    }
    expected = {"gsm8k": [4, 0.5, 2, 2], "arc_easy": [4, 0.75, 2, 3], "mmlu": [4, 0.25, 1, 4]}
    assert counts == expected | ({"humaneval": [1, 1.0, 1, 1]} if WORKS else {})
    chance = (1 / 4 + 1 / 4 + 1 / 3 + 1 / 5) / 4
    centered = [0.5, (0.75 - chance) / (1 - chance), 0, *([1] if WORKS else [])]
    assert found["score"] == pytest.approx(np.mean(centered))
    assert found["name"] == "ChatCORE of gsm8k, arc_easy, mmlu" + (", humaneval" if WORKS else "")
    said = {item["prompt"].split("has ")[1].split("?")[0]: item for item in found["items"] if item["task"] == "gsm8k"}
    assert {name: item["answer"] for name, item in said.items()} == {name: SAID[name] for name, _ in GSM8K}
    for item in found["items"]:
        assert item["prompt"].count("<|user|>") == item["prompt"].count("<|assistant|>") == 1
        assert sum(item["prompt"].count(name) for name in SAID) == 1


@pytest.mark.launch
def test_an_evaluation_reports_the_tasks_and_a_row_for_each_question(evaluated):
    report = evaluated["report"]["chat_core"]
    assert report["name"] == "ChatCORE of arc_easy, mmlu, at most 3 questions per task"
    assert {name: (task["items"], task["data"]) for name, task in report["tasks"].items()} == {
        "arc_easy": (3, "allenai/ai2_arc ARC-Easy"),
        "mmlu": (3, "cais/mmlu all"),
    }
    assert [(row["task"], row["item"]) for row in evaluated["rows"]] == [
        (name, index) for name in ("arc_easy", "mmlu") for index in range(3)
    ]
    assert evaluated["report"]["hashes"]["chat_core"].keys() == report["tasks"].keys()
    for text in ("Questions to a chat model", "in the asked format", report["name"]):
        assert text in evaluated["page"]
    assert evaluated["card"] == [
        f"{report['name']} (centered accuracy)",
        "Accuracy on allenai/ai2_arc ARC-Easy (accuracy)",
        "Accuracy on cais/mmlu all (accuracy)",
    ]


@pytest.mark.launch
def test_two_models_are_compared_on_the_same_questions(evaluated):
    first, other = evaluated["compared"]["tasks"]["chat_core"]["rows"]
    assert other["unpaired"] is None
    assert other["difference"]["value"] == pytest.approx(other["value"] - first["value"])
    assert "ChatCORE of arc_easy, mmlu" in evaluated["text"]


@pytest.mark.launch
def test_questions_that_cannot_be_loaded_are_named(evaluated):
    assert "the questions of arc_challenge cannot be loaded" in evaluated["missing"]
    assert "leave arc_challenge out of --chat_core_tasks" in evaluated["missing"]
