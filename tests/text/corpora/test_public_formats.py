"""Rows in the formats of other projects are read as they are meant by `sft` and `dpo`, or refused in one sentence.

The words of the rows are made up; keys and shapes are those of the source.
"""

import json

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.text.corpora import loading
from hmm_datasets.training.post_training.conversations import conversation_splits, preference_splits
from hmm_datasets.training.sources import PreferenceSettings

ASK, ANSWER = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
WORSE = {"role": "assistant", "content": "B"}
CALL = 'assistant: <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
CALL_AS_JSON = '{"name": "weather", "arguments": {"city": "Rome"}}'
PLAIN = ["user: Q", "assistant: A"]
PAIR = (["user: Q"], ["assistant: A"], ["assistant: B"])


@pytest.fixture(autouse=True)
def printed_anew(monkeypatch):
    monkeypatch.setattr(loading, "_recognized", set())


def lines(messages):
    return [f"{message['role']}: {message['content']}" for message in messages]


def write(folder, row):
    file = folder / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return str(file)


def read_for_sft(file):
    rows, _ = conversation_splits(file, test_fraction=0)
    (row,) = rows
    return lines(row["messages"])


def read_for_dpo(file):
    rows, _ = preference_splits(PreferenceSettings(model="none", preferences=file, test_fraction=0))
    (row,) = rows
    return tuple(lines(row[side]) for side in ("prompt", "chosen", "rejected"))


SFT = {
    "LLaMA-Factory, two answers in a list": pytest.param(
        {"instruction": "Q", "input": "", "output": ["good", "bad"]},
        "output: expected messages with role and content, found a list of texts",
        marks=pytest.mark.outside(
            "https://github.com/hiyouga/LlamaFactory/issues/1913",
            "rows whose output is a list of a good and a bad answer",
            "refused by line: output is a list of texts, which does not say who speaks",
        ),
    ),
    "LLaMA-Factory, function_call": pytest.param(
        {
            "conversations": [
                {"from": "human", "value": "Q"},
                {"from": "function_call", "value": CALL_AS_JSON},
                {"from": "observation", "value": "21"},
                {"from": "gpt", "value": "A"},
            ],
            "tools": '[{"name": "weather"}]',
        },
        [..., "user: Q", CALL, "tool: 21", "assistant: A"],
        marks=pytest.mark.outside(
            "https://github.com/hiyouga/LlamaFactory/issues/2367",
            "turns of role function_call, whose value is a call as JSON",
            "the call is learnt in <tool_call>, as the declaration of the tools asks for it",
        ),
    ),
    "LLaMA-Factory, KTO": pytest.param(
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "label": True},
        PLAIN,
        marks=pytest.mark.outside(
            "https://github.com/hiyouga/LLaMA-Factory/blob/main/data/kto_en_demo.json",
            "conversations with a label that says whether the answer is good",
            "true, 1, yes and their like are learnt, false rows are left out and counted",
        ),
    ),
    "FastChat": pytest.param(
        {"id": "x_0", "conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]},
        PLAIN,
        marks=pytest.mark.outside(
            "https://github.com/lm-sys/FastChat/blob/main/data/dummy_conversation.json",
            "fine-tune on FastChat's example file",
            "is read as ShareGPT; id is counted as not used",
        ),
    ),
    "Firefly": pytest.param(
        {
            "conversation_id": 1,
            "category": "writing",
            "conversation": [{"human": "Q", "assistant": "A"}, {"human": "Q2", "assistant": "A2"}],
        },
        [*PLAIN, "user: Q2", "assistant: A2"],
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/YeungNLP/firefly-train-1.1M",
            "a column conversation of objects with human and assistant, as Firefly and ms-swift read them",
            "each object is two turns; other columns are counted as not used",
        ),
    ),
    "xtuner": pytest.param(
        {"conversation": [{"system": "S", "input": "Q", "output": "A"}, {"input": "Q2", "output": "A2"}]},
        ["system: S", *PLAIN, "user: Q2", "assistant: A2"],
        marks=pytest.mark.outside(
            "https://github.com/InternLM/xtuner/blob/v0.1.13/docs/en/user_guides/dataset_format.md",
            "a column conversation of objects with system, input and output",
            "each object is two turns, after its system message",
        ),
    ),
    "Capybara": pytest.param(
        {"source": "airoboros", "conversation": [{"input": "Q", "output": "A"}]},
        PLAIN,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/LDJnr/Capybara",
            "a column conversation of objects with input and output",
            "each object is two turns",
        ),
    ),
    "WildChat": pytest.param(
        {"conversation_hash": "a", "model": "gpt-4", "conversation": [{**ASK, "language": "English"}, ANSWER]},
        PLAIN,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/allenai/WildChat-1M",
            "a column conversation of messages",
            "is read; language and the other columns are counted as not used",
        ),
    ),
    "LMSYS-Chat": pytest.param(
        {"conversation_id": "c1", "model": "vicuna", "conversation": [ASK, ANSWER], "turn": 1, "redacted": False},
        PLAIN,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/lmsys/lmsys-chat-1m",
            "a column conversation of messages, beside conversation_id",
            "is read as a conversation per row, not as one message per row",
        ),
    ),
    "Bedrock": pytest.param(
        {
            "schemaVersion": "bedrock-conversation-2024",
            "system": [{"text": "S"}],
            "messages": [
                {"role": "user", "content": [{"text": "Q"}]},
                {"role": "assistant", "content": [{"text": "A"}]},
            ],
        },
        ["system: S", *PLAIN],
        marks=pytest.mark.outside(
            "https://docs.aws.amazon.com/bedrock/latest/userguide/preparing-text-data.html",
            "Amazon Nova's rows: system and contents as parts without a type",
            "parts with text alone are text",
        ),
    ),
    "Gemini": pytest.param(
        {
            "systemInstruction": {"role": "system", "parts": [{"text": "S"}]},
            "contents": [{"role": "user", "parts": [{"text": "Q"}]}, {"role": "model", "parts": [{"text": "A"}]}],
        },
        "no conversations, found systemInstruction, contents; expected the columns of conversations: messages",
        marks=pytest.mark.outside(
            "https://cloud.google.com/vertex-ai/generative-ai/docs/models/gemini-use-supervised-tuning",
            "Gemini's rows of contents with parts",
            "refused: no conversations, found systemInstruction, contents; expected the columns of conversations",
        ),
    ),
    "Cohere": pytest.param(
        {
            "messages": [
                {"role": "System", "content": "S"},
                {"role": "User", "content": "Q"},
                {"role": "Chatbot", "content": "A"},
            ]
        },
        ["system: S", *PLAIN],
        marks=pytest.mark.outside(
            "https://docs.cohere.com/docs/chat-preparing-the-data",
            "messages by System, User and Chatbot",
            "are known roles",
        ),
    ),
    "mistral-finetune": pytest.param(
        {
            "messages": [
                ASK,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "TX92Jm8Zi", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
                    ],
                },
                {"role": "tool", "content": "21", "tool_call_id": "TX92Jm8Zi"},
                {**ANSWER, "weight": 1},
            ]
        },
        ["user: Q", CALL, "tool: 21", "assistant: A"],
        marks=pytest.mark.outside(
            "https://github.com/mistralai/mistral-finetune",
            "calls with an id and without a type, and weights of answers",
            "are read; ids are counted as not used",
        ),
    ),
    "ms-swift, tool_call": pytest.param(
        {
            "messages": [
                ASK,
                {"role": "tool_call", "content": CALL_AS_JSON},
                {"role": "tool_response", "content": "21"},
                ANSWER,
            ]
        },
        ["user: Q", CALL, "tool: 21", "assistant: A"],
        marks=pytest.mark.outside(
            "https://github.com/modelscope/ms-swift/pull/5878",
            "roles tool_call and tool_response, with a call as JSON",
            "the call is learnt in <tool_call>",
        ),
    ),
    "ms-swift, rejected_response": pytest.param(
        {"query": "Q", "response": "A", "rejected_response": ["B", "C"]},
        PLAIN,
        marks=pytest.mark.outside(
            "https://github.com/modelscope/ms-swift/issues/4728",
            "query and response beside a list of rejected responses",
            "the response is learnt; rejected_response is counted as not used",
        ),
    ),
    "Llama 3.1": pytest.param(
        {
            "messages": [
                ASK,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"name": "weather", "parameters": {"city": "Rome"}}],
                },
                {"role": "ipython", "content": "21"},
                ANSWER,
            ]
        },
        ["user: Q", CALL, "tool: 21", "assistant: A"],
        marks=pytest.mark.outside(
            "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/prompt_format.md",
            "calls whose arguments are named parameters, results by ipython",
            "parameters are arguments",
        ),
    ),
    "MOSS": pytest.param(
        {"conversation_id": "1", "meta_instruction": "S", "chat": {"turn_1": {"Human": "Q", "MOSS": "A"}}},
        "no conversations, found conversation_id, meta_instruction, chat; expected the columns of conversations",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/fnlp/moss-003-sft-data",
            "turns by number in an object named chat",
            "refused: no conversations, found conversation_id, meta_instruction, chat",
        ),
    ),
    "BELLE": pytest.param(
        {"instruction": "Q", "input": "", "output": "A"},
        PLAIN,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/BelleGroup/multiturn_chat_0.8M",
            "instruction, an empty input, and output",
            "is read as Alpaca",
        ),
    ),
    "ChatGLM": pytest.param(
        {"content": "Q", "summary": "A"},
        "no conversations, found content, summary; expected the columns of conversations",
        marks=pytest.mark.outside(
            "https://github.com/THUDM/ChatGLM-6B/tree/main/ptuning",
            "the columns content and summary of ADGEN",
            "refused: no conversations, found content, summary; rename columns",
        ),
    ),
    "ChatGLM3": pytest.param(
        {"conversations": [ASK, {"role": "tool", "name": "weather", "parameters": {}, "observation": "21"}, ANSWER]},
        "message 1 needs role and content, or from and value",
        marks=pytest.mark.outside(
            "https://github.com/THUDM/ChatGLM3/blob/main/finetune_demo/README.md",
            "a turn of a tool with parameters and observation in place of a content",
            "refused by line: message 1 needs role and content, or from and value",
        ),
    ),
    "Qwen": pytest.param(
        {"id": "identity_0", "conversations": [{"from": "user", "value": "Q"}, {"from": "assistant", "value": "A"}]},
        PLAIN,
        marks=pytest.mark.outside(
            "https://github.com/QwenLM/Qwen/blob/main/README.md",
            "conversations from user and assistant",
            "is read as ShareGPT",
        ),
    ),
    "InternLM": pytest.param(
        [{"role": "system", "content": "S"}, ASK, ANSWER],
        ["system: S", *PLAIN],
        marks=pytest.mark.outside(
            "https://github.com/InternLM/InternLM/blob/main/chat/chat_format.md",
            "lines that are lists of messages",
            "a list of messages is a conversation",
        ),
    ),
    "DeepSpeed-Chat": pytest.param(
        {"prompt": "\n\nHuman: Q0\n\nAssistant: A0\n\nHuman: Q\n\nAssistant:", "response": " A"},
        ["user: Q0", "assistant: A0", "user: Q", "assistant:  A"],
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/Dahoas/rm-static",
            "a prompt that is a transcript by Human and Assistant, with which DeepSpeed-Chat trains",
            "is cut into turns; its end, Assistant:, asks for the answer",
        ),
    ),
    "HelpSteer2": pytest.param(
        {"prompt": "Q", "response": "A", "helpfulness": 4, "correctness": 4, "verbosity": 2},
        PLAIN,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/nvidia/HelpSteer2",
            "prompt and response with scores",
            "is read; the scores are counted as not used",
        ),
    ),
    "UltraFeedback": pytest.param(
        {"source": "evol", "instruction": "Q", "models": ["a"], "completions": [{"response": "A", "model": "a"}]},
        "no conversations, found source, instruction, models, completions",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/openbmb/UltraFeedback",
            "instructions with several scored completions",
            "refused: no conversations, found source, instruction, models, completions",
        ),
    ),
    "Magpie": pytest.param(
        {
            "uuid": "x",
            "instruction": "Q",
            "response": "A",
            "conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}],
        },
        PLAIN,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/Magpie-Align/Magpie-Pro-300K-Filtered",
            "the same conversation in conversations, and in instruction and response",
            "conversations is read, the others are counted as not used",
        ),
    ),
    "glaive-function-calling-v2": pytest.param(
        {"system": "SYSTEM: S", "chat": "USER: Q\n\n\nASSISTANT: A <|endoftext|>"},
        "no conversations, found system, chat; expected the columns of conversations",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/glaiveai/glaive-function-calling-v2",
            "a chat in one text with USER: and ASSISTANT:",
            "refused: no conversations, found system, chat",
        ),
    ),
    "xLAM": pytest.param(
        {"id": 0, "query": "Q", "answers": f"[{CALL_AS_JSON}]", "tools": '[{"name": "weather"}]'},
        "no conversations, found id, query, answers, tools; expected the columns of conversations",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/Salesforce/xlam-function-calling-60k",
            "a query with calls as JSON in a column answers",
            "refused: no conversations, found id, query, answers, tools",
        ),
    ),
    "ToolBench": pytest.param(
        {
            "id": "x",
            "conversations": [
                {"from": "system", "value": "S"},
                {"from": "user", "value": "Q"},
                {"from": "assistant", "value": "Action: weather"},
                {"from": "function", "value": "21"},
                {"from": "assistant", "value": "A"},
            ],
        },
        ["system: S", "user: Q", "assistant: Action: weather", "tool: 21", "assistant: A"],
        marks=pytest.mark.outside(
            "https://github.com/OpenBMB/ToolBench",
            "conversations with turns of function, the result of a call",
            "function is a tool",
        ),
    ),
    "hermes-function-calling": pytest.param(
        {
            "id": "x",
            "conversations": [
                {"from": "human", "value": "Q"},
                {"from": "gpt", "value": CALL.removeprefix("assistant: ")},
                {"from": "tool", "value": "21"},
                {"from": "gpt", "value": "A"},
            ],
            "tools": '[{"type": "function", "function": {"name": "weather"}}]',
        },
        [..., "user: Q", CALL, "tool: 21", "assistant: A"],
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/NousResearch/hermes-function-calling-v1",
            "calls as text of gpt, declared in a column tools as JSON",
            "are learnt as they are written; the tools are declared in the system message",
        ),
    ),
    "OpenMathInstruct-2": pytest.param(
        {"problem": "Q", "generated_solution": "A", "expected_answer": "4", "problem_source": "math"},
        "no conversations, found problem, generated_solution, expected_answer, problem_source",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/nvidia/OpenMathInstruct-2",
            "problems with a generated solution and the expected answer",
            "refused: no conversations, found problem, generated_solution; rename columns",
        ),
    ),
    "OpenOrca": pytest.param(
        {"id": "niv.1", "system_prompt": "S", "question": "Q", "response": "A"},
        ["system: S", *PLAIN],
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/Open-Orca/OpenOrca",
            "system_prompt, question and response",
            "is read with its system message",
        ),
    ),
    "OpenAssistant": pytest.param(
        {"message_id": "a", "parent_id": None, "text": "Q", "role": "prompter", "message_tree_id": "a"},
        "contains text (text), expected conversations; name another corpus",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/OpenAssistant/oasst1",
            "a message per row, in trees",
            "refused for conversations, since no column names the conversation of a message",
        ),
    ),
    "OpenRLHF": pytest.param(
        {"input": "Q", "output": "A"},
        PLAIN,
        marks=pytest.mark.outside(
            "https://github.com/OpenRLHF/OpenRLHF",
            "supervised fine-tuning on the columns input and output",
            "is read",
        ),
    ),
    "Aya": pytest.param(
        {"inputs": "Q", "targets": "A", "language": "German", "annotation_type": "original"},
        PLAIN,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/CohereForAI/aya_dataset",
            "inputs and targets",
            "is read; language and others are counted as not used",
        ),
    ),
    "verl": pytest.param(
        {"data_source": "gsm8k", "prompt": [ASK], "ability": "math", "reward_model": {"ground_truth": "4"}},
        "no conversations, found data_source, prompt, ability, reward_model",
        marks=pytest.mark.outside(
            "https://verl.readthedocs.io/en/latest/preparation/prepare_data.html",
            "prompts for reinforcement learning, with their reward",
            "refused for sft, which has no answers to learn from; grpo reads the prompts",
        ),
    ),
    "Axolotl, segments": pytest.param(
        {"segments": [{"label": True, "text": "A"}, {"label": False, "text": "Q"}]},
        "no conversations, found segments; expected the columns of conversations",
        marks=pytest.mark.outside(
            "https://docs.axolotl.ai/docs/dataset-formats/template_free.html",
            "text in segments, of which the label says whether there is a loss",
            "refused: no conversations, found segments",
        ),
    ),
    "UltraChat": pytest.param(
        {"id": "0", "data": ["Q", "A"]},
        "no conversations, found id, data; expected the columns of conversations",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/openbmb/UltraChat",
            "texts by user and assistant in turn, in a column data",
            "refused: no conversations, found id, data",
        ),
    ),
    "LIMA": pytest.param(
        {"conversations": ["Q", "A"], "source": "stackexchange"},
        "read of lima:FILE",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/GAIR/lima",
            "texts by user and assistant in turn, in a column conversations",
            "refused in another file than LIMA's: a list of texts does not say who speaks; lima:FILE reads it",
        ),
    ),
    "llm-foundry": pytest.param(
        {"prompt": "Q", "response": ""},
        "row 0 of split 'train' has no turn of the assistant",
        marks=pytest.mark.outside(
            "https://github.com/mosaicml/llm-foundry/issues/445",
            "an empty response among others",
            "is left out and counted; refused where every response is empty",
        ),
    ),
    "h2o-llmstudio": pytest.param(
        {"instruction": "Q", "output": "A", "parent_id": ""},
        PLAIN,
        marks=pytest.mark.outside(
            "https://github.com/h2oai/h2o-llmstudio/pull/453",
            "instruction and output, of which some are empty",
            "empty answers are left out and counted",
        ),
    ),
    "mlx-lm": pytest.param(
        {
            "messages": [
                ASK,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "call_id", "type": "function", "function": {"name": "noop", "arguments": ""}}
                    ],
                },
            ],
            "tools": [{"type": "function", "function": {"name": "noop"}}],
        },
        [..., "user: Q", 'assistant: <tool_call>\n{"name": "noop", "arguments": {}}\n</tool_call>'],
        marks=pytest.mark.outside(
            "https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/LORA.md",
            "a call without a content, and arguments that are an empty text",
            "an empty text is no arguments",
        ),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("row", "expected"), [pytest.param(*p.values, marks=p.marks, id=n) for n, p in SFT.items()])
def test_sft_reads_a_public_row_as_it_is_meant_or_refuses_it_by_what_stands_there(row, expected, tmp_path):
    file = write(tmp_path, row)
    if isinstance(expected, str):
        with pytest.raises(InputError) as caught:
            conversation_splits(file, test_fraction=0)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)
    else:
        messages = read_for_sft(file)
        assert messages[1:] == expected[1:]
        assert expected[0] is ... or messages[0] == expected[0]


DPO = {
    "LLaMA-Factory, ShareGPT": pytest.param(
        {
            "conversations": [{"from": "human", "value": "Q"}],
            "chosen": {"from": "gpt", "value": "A"},
            "rejected": {"from": "gpt", "value": "B"},
        },
        PAIR,
        marks=pytest.mark.outside(
            "https://github.com/hiyouga/LlamaFactory/issues/3495",
            "preferences with a prompt in conversations, and answers that are one message each",
            "are read with their prompt",
        ),
    ),
    "LLaMA-Factory, answers in a list": pytest.param(
        {"instruction": "Q", "input": "", "output": ["A", "B"]},
        "contains conversations (instruction, input, output), expected preferences",
        marks=pytest.mark.outside(
            "https://github.com/hiyouga/LlamaFactory/issues/6509",
            "preferences whose output is a list of the better and the worse answer",
            "refused by dpo, which reads chosen and rejected, and by sft, since a list does not say who speaks",
        ),
    ),
    "orpo-dpo-mix": pytest.param(
        {"source": "Airoboros", "chosen": [ASK, ANSWER], "rejected": [ASK, WORSE], "prompt": "Q", "question": "Q"},
        PAIR,
        marks=pytest.mark.outside(
            "https://github.com/hiyouga/LlamaFactory/issues/3354",
            "both answers with the whole conversation, beside its prompt as text",
            "the messages with which both begin are the prompt, if they have the text of the column prompt",
        ),
    ),
    "roles in capitals": pytest.param(
        {
            "chosen": [{"content": "Q", "role": "Human"}, {"content": "A", "role": "Assistant"}],
            "rejected": [{"content": "Q", "role": "Human"}, {"content": "B", "role": "Assistant"}],
        },
        PAIR,
        marks=pytest.mark.outside(
            "https://github.com/hiyouga/LlamaFactory/issues/3264",
            "multi-turn preferences by Human and Assistant",
            "are known roles",
        ),
    ),
    "OpenAI": pytest.param(
        {
            "input": {"messages": [ASK], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [ANSWER],
            "non_preferred_output": [WORSE],
        },
        PAIR,
        marks=pytest.mark.outside(
            "https://developers.openai.com/api/docs/guides/direct-preference-optimization",
            "input as an object with messages and tools, preferred_output, non_preferred_output",
            "is read; parallel_tool_calls is counted as not used",
        ),
    ),
    "Azure": pytest.param(
        {
            "input": {"messages": [{"role": "system", "content": "S"}, ASK]},
            "preferred_output": [ANSWER],
            "non_preferred_output": [WORSE],
        },
        (["system: S", "user: Q"], *PAIR[1:]),
        marks=pytest.mark.outside(
            "https://learn.microsoft.com/en-us/azure/foundry/openai/how-to/fine-tuning-direct-preference-optimization",
            "preferences with a system message in input",
            "is read",
        ),
    ),
    "Together": pytest.param(
        {"input": {"messages": [ASK]}, "preferred_output": [ANSWER], "non_preferred_output": [WORSE]},
        PAIR,
        marks=pytest.mark.outside(
            "https://docs.together.ai/docs/fine-tuning/data-preparation",
            "preferences by input, preferred_output and non_preferred_output",
            "is read",
        ),
    ),
    "Fireworks": pytest.param(
        {
            "input": {"messages": [ASK], "tools": [{"type": "function", "function": {"name": "weather"}}]},
            "preferred_output": [ANSWER],
            "non_preferred_output": [WORSE],
        },
        ([..., "user: Q"], *PAIR[1:]),
        marks=pytest.mark.outside(
            "https://docs.fireworks.ai/fine-tuning/dpo-fine-tuning.md",
            "preferences whose input declares tools",
            "the tools are declared in the system message of the prompt",
        ),
    ),
    "NeMo RL, DPODataset": pytest.param(
        {"prompt": "Q", "chosen_response": "A", "rejected_response": "B"},
        PAIR,
        marks=pytest.mark.outside(
            "https://docs.nvidia.com/nemo/rl/latest/apidocs/nemo_rl/nemo_rl.data.hf_datasets.dpo.html",
            "prompt, chosen_response and rejected_response",
            "is read",
        ),
    ),
    "NeMo RL, completions": pytest.param(
        {"context": [ASK], "completions": [{"rank": 0, "completion": [ANSWER]}, {"rank": 1, "completion": [WORSE]}]},
        "no preferences, found context, completions; expected the columns of preferences: chosen, rejected",
        marks=pytest.mark.outside(
            "https://docs.nvidia.com/nemo/rl/0.6.0/guides/dpo.html",
            "a context with ranked completions",
            "refused: no preferences, found context, completions; expected the columns of preferences",
        ),
    ),
    "NeMo RL, ChatML": pytest.param(
        {"chosen": [ASK, ANSWER], "rejected": [ASK, WORSE]},
        PAIR,
        marks=pytest.mark.outside(
            "https://github.com/NVIDIA-NeMo/RL/pull/1027",
            "both answers as whole conversations",
            "the messages with which both begin are the prompt",
        ),
    ),
    "torchtune": pytest.param(
        {
            "chosen_conversations": [{"content": "Q", "role": "user"}, {"content": "A", "role": "assistant"}],
            "rejected_conversations": [{"content": "Q", "role": "user"}, {"content": "B", "role": "assistant"}],
        },
        PAIR,
        marks=pytest.mark.outside(
            "https://docs.pytorch.org/torchtune/stable/basics/preference_datasets.html",
            "chosen_conversations and rejected_conversations",
            "is read",
        ),
    ),
    "stack-exchange-paired": pytest.param(
        {"qid": 1, "question": "Q", "response_j": "A", "response_k": "B"},
        "no preferences, found qid, question, response_j, response_k; expected the columns of preferences",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/lvwerra/stack-exchange-paired",
            "question, response_j and response_k",
            "refused: no preferences, found qid, question, response_j, response_k",
        ),
    ),
    "distilabel": pytest.param(
        {"system": "S", "input": "Q", "chosen": "A", "rejected": "B", "generations": ["A", "B"], "rating": [9, 3]},
        (["system: S", "user: Q"], *PAIR[1:]),
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/argilla/distilabel-intel-orca-dpo-pairs",
            "system and input beside chosen and rejected",
            "are the prompt; generations and ratings are counted as not used",
        ),
    ),
    "messages before two answers": pytest.param(
        {"messages": [ASK], "chosen": "A", "rejected": "B"},
        PAIR,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/laurentiubp/dpo-capybara-sampled",
            "messages as the prompt of two answers that are texts",
            "are read with their prompt",
        ),
    ),
    "messages that repeat an answer": pytest.param(
        {"messages": [ASK, ANSWER], "chosen": [ASK, ANSWER], "rejected": [ASK, WORSE]},
        PAIR,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/VGraf/safety_pref_stack_dev",
            "messages beside both answers with the whole conversation",
            "the messages with which both answers begin are the prompt",
        ),
    ),
    "ultrafeedback_binarized": pytest.param(
        {
            "prompt": "Q",
            "prompt_id": "x",
            "chosen": [ASK, ANSWER],
            "rejected": [ASK, WORSE],
            "messages": [ASK, ANSWER],
            "score_chosen": 8.0,
        },
        PAIR,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/HuggingFaceH4/ultrafeedback_binarized",
            "a prompt as text, and both answers as whole conversations",
            "is read; messages and scores are counted as not used",
        ),
    ),
    "Nectar": pytest.param(
        {"prompt": "\n\nHuman: Q\n\nAssistant: ", "answers": [{"answer": "A", "rank": 1}, {"answer": "B", "rank": 2}]},
        "no preferences, found prompt, answers; expected the columns of preferences",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/berkeley-nest/Nectar",
            "seven ranked answers to a prompt",
            "refused: no preferences, found prompt, answers",
        ),
    ),
    "full-hh-rlhf": pytest.param(
        {"prompt": "\n\nHuman: Q\n\nAssistant:", "response": "A", "chosen": "A", "rejected": "B"},
        PAIR,
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/Dahoas/full-hh-rlhf",
            "a transcript as the prompt of two answers",
            "is cut into turns; its end, Assistant:, asks for the answers",
        ),
    ),
    "SHP": pytest.param(
        {"history": "Q", "human_ref_A": "A", "human_ref_B": "B", "labels": 1},
        "no preferences, found history, human_ref_A, human_ref_B, labels",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/stanfordnlp/SHP",
            "two answers and a label that says which is better",
            "refused: no preferences, found history, human_ref_A, human_ref_B, labels",
        ),
    ),
    "PKU-SafeRLHF": pytest.param(
        {"prompt": "Q", "response_0": "A", "response_1": "B", "better_response_id": 0},
        "no preferences, found prompt, response_0, response_1, better_response_id",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/PKU-Alignment/PKU-SafeRLHF",
            "two responses and the number of the better one",
            "refused: no preferences, found prompt, response_0, response_1, better_response_id",
        ),
    ),
    "HelpSteer3": pytest.param(
        {"domain": "general", "context": [ASK], "response1": "A", "response2": "B", "overall_preference": -2},
        "no preferences, found domain, context, response1, response2, overall_preference",
        marks=pytest.mark.outside(
            "https://huggingface.co/datasets/nvidia/HelpSteer3",
            "a context with two responses and an overall preference",
            "refused: no preferences, found domain, context, response1, response2, overall_preference",
        ),
    ),
    "AutoTrain": pytest.param(
        {"prompt": "Q", "text": "A", "rejected_text": "B"},
        "contains text (text), expected preferences; name another corpus",
        marks=pytest.mark.outside(
            "https://huggingface.co/docs/autotrain/en/llm_finetuning",
            "prompt, text and rejected_text for DPO",
            "refused: contains text (text), expected preferences",
        ),
    ),
    "ms-swift, rejected_response": pytest.param(
        {"messages": [ASK, ANSWER], "rejected_response": "B"},
        "contains conversations (messages), expected preferences",
        marks=pytest.mark.outside(
            "https://github.com/modelscope/ms-swift/issues/7314",
            "messages with the better answer, and rejected_response",
            "refused by dpo: contains conversations (messages), expected preferences; sft learns the messages",
        ),
    ),
    "TRL, implicit prompt of texts": pytest.param(
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        "chosen and rejected have no prompt: expected one in a column (prompt, instruction",
        marks=pytest.mark.outside(
            "https://huggingface.co/docs/trl/dataset_formats",
            "two texts whose common beginning is the prompt",
            "refused: a common beginning is a prompt only if it ends at a turn, as in transcripts",
        ),
    ),
    "a conversation with another answer": pytest.param(
        {
            "conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "Once"}],
            "chosen": {"from": "gpt", "value": "A"},
            "rejected": {"from": "gpt", "value": "B"},
        },
        "conversations ends with {'role': 'assistant', 'content': 'Once'}",
        marks=pytest.mark.outside(
            "https://github.com/Flossiee/HonestyLLM/issues/7",
            "conversations that end with a third answer, beside chosen and rejected",
            "refused by line: conversations ends with the assistant; expected answers to its end",
        ),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("row", "expected"), [pytest.param(*p.values, marks=p.marks, id=n) for n, p in DPO.items()])
def test_dpo_reads_a_public_row_as_it_is_meant_or_refuses_it_by_what_stands_there(row, expected, tmp_path):
    file = write(tmp_path, row)
    if isinstance(expected, str):
        with pytest.raises(InputError) as caught:
            read_for_dpo(file)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)
    else:
        prompt, *sides = read_for_dpo(file)
        assert sides == list(expected[1:])
        assert prompt[1:] == expected[0][1:]
        assert expected[0][0] is ... or prompt[0] == expected[0][0]
