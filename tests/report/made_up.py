"""Made-up reports of evaluations, consistent in themselves, in the format of those on disk."""

import json
from pathlib import Path

import numpy as np

STEPS = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]
LEVELS = {"uniform": 1.1, "unigram": 1.0, "bigram": 0.9, "3-gram": 0.87, "bayes": 0.8}
TASKS = {"hellaswag": 0.25, "lambada_openai": 0.0, "copa": 0.5}


def optimum(*, gap=0.05, length=24, num_states=3, seed=0, num_sequences=40) -> tuple[dict, list[dict]]:
    """A model whose loss is `gap` above the Bayes-optimal loss."""
    noise = np.random.default_rng([seed, round(1e6 * gap)])
    positions = np.arange(1, length + 1)
    floor_nats = length * np.random.default_rng(seed).normal(LEVELS["bayes"], 0.05, num_sequences)
    nats = floor_nats + length * noise.normal(gap, 0.02, num_sequences)
    found = float((nats - floor_nats).mean() / length)
    curves = {name: level + 0.3 / positions * (name != "uniform") for name, level in LEVELS.items()}
    curves["model"] = curves["bayes"] + found
    error = np.full(length, 0.01)

    def result(name: str, values: np.ndarray) -> dict:
        return {
            name: float(values.mean()),
            "standard_error": 0.004,
            "by_position": values.tolist(),
            "by_position_error": error.tolist(),
        }

    divergences = {"uniform": 0.5, "unigram": 0.35, "bigram": 0.2, "3-gram": 0.12, "bayes": max(found, 0.001)}
    return {
        "cross_entropy": {name: result("cross_entropy", values) for name, values in curves.items()},
        "kl": {name: result("kl", level * (1 - 0.5 / positions)) for name, level in divergences.items()},
        "bayes_gap": result("bayes_gap", np.full(length, found))
        | {"standard_error": float((nats - floor_nats).std(ddof=1) / length / num_sequences**0.5)},
        "floor": "bayes",
        "final_token": {
            name: {"cross_entropy": float(values[-1]), "standard_error": 0.01} for name, values in curves.items()
        },
        "num_sequences": num_sequences,
        "length": length,
        "seed": seed,
        "first": 1 << 40,
        "fingerprint": f"optimum-of-{num_states}-states",
        "source": "HMM",
        "num_states": num_states,
        "num_symbols": 3,
    }, [
        {"sequence": index, "nats": float(n), "floor_nats": float(f), "tokens": length}
        for index, (n, f) in enumerate(zip(nats, floor_nats, strict=True))
    ]


def training(*, speed=1.0) -> dict:
    """A model that is closest to each predictor in turn."""
    rows, names = [], list(LEVELS)
    for step in STEPS:
        progress = min(len(names) - 1.0, speed * np.log10(1 + step) * 1.2)
        loss = float(np.interp(progress, range(len(names)), list(LEVELS.values()))) + 0.004
        row = {"step": step, "tokens": 1000 * step, "cross_entropy": loss}
        for index, (name, level) in enumerate(LEVELS.items()):
            row |= {f"cross_entropy_{name}": level, f"kl_{name}": float(0.01 + 0.1 * (index - progress) ** 2)}
        rows.append(row)
    predictors = {}
    for name in names:
        best = min(rows, key=lambda row: row[f"kl_{name}"])
        passed = [row["step"] for row in rows if row["cross_entropy"] < LEVELS[name]]
        predictors[name] = {
            "closest_step": best["step"],
            "closest_kl": best[f"kl_{name}"],
            "passed_step": passed[0] if passed else None,
        }
    phases = []
    for row in rows:
        nearest = min(names, key=lambda name: row[f"kl_{name}"])
        if not phases or phases[-1]["predictor"] != nearest:
            phases.append({"predictor": nearest, "first_step": row["step"]})
        phases[-1]["last_step"] = row["step"]
    return {"from": "history", "rows": rows, "predictors": predictors, "phases": phases}


def beliefs(*, r2=0.96) -> tuple[dict, list[dict]]:
    """Probes of a model of two layers, and 400 positions of the last layer."""
    layers = {
        name: {"r2": value, "rmse": 0.3 * (1 - value) ** 0.5, "shuffled_r2": -0.01, "shuffled_rmse": 0.3}
        | {"untrained_r2": 0.4 * value, "untrained_rmse": 0.25}
        for name, value in {"0": 0.3, "1": r2 - 0.1, "2": r2 - 0.02, "all": r2}.items()
    }
    generator = np.random.default_rng(0)
    true = generator.dirichlet([0.4, 0.4, 0.4], 400)
    probed = true + generator.normal(0, 0.02, true.shape)
    items = [{"belief": t, "probed": p} for t, p in zip(true.tolist(), probed.tolist(), strict=True)]
    return {
        "layers": layers,
        "num_states": 3,
        "num_sequences": 200,
        "fitted_on": 100,
        "tested_on": 100,
        "fingerprint": "optimum-of-3-states",
    }, items


def text(*, bits=1.2, documents=30) -> tuple[dict, list[dict]]:
    """Held-out documents with the same bytes for any number of bits."""
    sizes = np.random.default_rng(0).integers(100, 900, documents)
    noise = np.random.default_rng(round(1000 * bits)).normal(1, 0.05, documents)
    nats = bits * noise * sizes * np.log(2)
    found = float(nats.sum() / sizes.sum() / np.log(2))
    tokens = sizes // 4
    per_token = float(nats.sum() / tokens.sum())
    return {
        "perplexity": float(np.exp(per_token)),
        "perplexity_low": float(np.exp(per_token - 0.05)),
        "perplexity_high": float(np.exp(per_token + 0.05)),
        "nats_per_token": per_token,
        "bits_per_byte": found,
        "standard_error": 0.01,
        "bits_per_byte_low": found - 0.02,
        "bits_per_byte_high": found + 0.02,
        "num_tokens": int(tokens.sum()),
        "bytes": int(sizes.sum()),
        "num_documents": documents,
        "window": 256,
        "stride": 128,
        "least_context": 128,
        "unit": "document",
        "level": 0.95,
    }, [
        {"document": k, "nats": float(n), "tokens": int(t), "bytes": int(b)}
        for k, (n, t, b) in enumerate(zip(nats, tokens, sizes, strict=True))
    ]


def core(*, accuracy=0.6, items=50) -> tuple[dict, list[dict]]:
    """Three tasks of the same size."""
    tasks, rows = {}, []
    for number, (label, baseline) in enumerate(TASKS.items()):
        rights = np.random.default_rng([number, round(1000 * accuracy)]).random(items) < accuracy
        found = float(rights.mean())
        center = 1 / (1 - baseline)
        tasks[label] = {
            "type": "language_modeling" if baseline == 0 else "multiple_choice",
            "shots": 0,
            "items": items,
            "accuracy": found,
            "baseline": baseline,
            "centered": (found - baseline) * center,
            "low": (found - baseline - 0.13) * center,
            "high": (found - baseline + 0.13) * center,
            "sha256": f"{number:064x}",
        }
        rows += [{"task": label, "item": k, "correct": bool(right)} for k, right in enumerate(rights)]
    score = float(np.mean([task["centered"] for task in tasks.values()]))
    return {
        "name": "CORE subset (3 of 22 tasks)",
        "score": score,
        "low": score - 0.1,
        "high": score + 0.1,
        "complete": False,
        "baselines": "v1",
        "max_per_task": items,
        "tasks": tasks,
        "missing": ["piqa", "boolq"],
    }, rows


def chat(right=3) -> dict:
    """Answers to four questions."""
    counts = {"right": right, "ended": 4, "spoke_for_others": 1, "repeated": 0, "empty": 0}
    shares = {name: {"count": n, "share": n / 4, "low": 0.1, "high": 0.9} for name, n in counts.items()}
    sizes = {"conversations": 4, "tokens": 1234, "questions": 4}
    return {"loss": 1.25, "loss_low": 1.0, "loss_high": 1.5, "shares": shares} | sizes


def chat_items(found: dict) -> list[dict]:
    """The losses of four conversations, which differ less between runs than within one."""
    tokens, changes = (308, 308, 308, 310), (0.2, -0.2, 0.1, -0.1)
    return [
        {
            "document": number,
            "conversation": f"{number:016x}",
            "tokens": count,
            "nats": count * (found["loss"] + change),
        }
        for number, (count, change) in enumerate(zip(tokens, changes, strict=True))
    ]


def completions(greedy=" Paris.") -> dict:
    """A fact and an open prompt."""
    return {
        "prompts": [
            {"prompt": "The capital of France is", "kind": "fact", "expected": "Paris", "greedy": greedy}
            | {"correct": "Paris" in greedy, "sampled": [greedy, " a city\nof light"]},
            {"prompt": "Once upon a time", "kind": "open", "expected": None, "greedy": " there was", "correct": None}
            | {"sampled": [" a fox & a <b>hen</b>"]},
        ],
        "facts_correct": int("Paris" in greedy),
        "facts": 1,
        "temperature": 0.8,
        "seed": 0,
        "max_new_tokens": 16,
    }


def provenance(name="outputs/mess3") -> dict:
    """The fields that every report has."""
    return {
        "model": {"name": name, "type": "llama", "parameters": 123456, "sha256": "ab" * 32},
        "settings": {"model": name, "tasks": [], "num_sequences": 40},
        "seeds": {"stream": 0, "evaluation": 0},
        "versions": {"torch": "2.8.0", "transformers": "5.20.0"},
        "python": "3.11.2",
        "commit": "0123456789abcdef",
        "command": f"hmm-datasets evaluate {name}",
        "time": "2026-01-02T03:04:05Z",
        "hashes": {"optimum": "optimum-of-3-states"},
    }


def report(name="outputs/mess3", **changes) -> tuple[dict, dict[str, list[dict]]]:
    """A report of every task and its items; `changes` are arguments of the makers above, by task."""
    made = {
        task: maker(**changes.get(task, {}))
        for task, maker in {"optimum": optimum, "beliefs": beliefs, "text": text, "core": core}.items()
    }
    found = provenance(name) | {task: figures for task, (figures, _) in made.items()}
    found |= {
        "training": training(**changes.get("training", {})),
        "chat": chat(**changes.get("chat", {})),
        "completions": completions(**changes.get("completions", {})),
    }
    return found, {task: rows for task, (_, rows) in made.items()} | {"chat": chat_items(found["chat"])}


def write(folder: Path, found: dict, items: dict[str, list[dict]]) -> Path:
    """Write a report and its items like an evaluation."""
    (folder / "items").mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(found))
    for task, rows in items.items():
        (folder / "items" / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
