"""The parts `generation` and `nccl` of `gpu_training.py`: what a model says and scores per second, and the links."""

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator

from hmm_datasets.compat.transformers_caches import generate
from hmm_datasets.evaluation.continuations import Row, score_rows
from hmm_datasets.report.tables import text_table


def generation(make: Callable[[str, int, str], Any], device: torch.device, *, tiny: bool) -> None:
    """Tokens per second generated with a cache, and rows of four answers scored as CORE scores them, in bfloat16."""
    prompt, new = (8, 8) if tiny else (128, 64)
    table = []
    accelerator = Accelerator(cpu=tiny)
    for size in ("125m",) if tiny else ("125m", "500m", "1.3b"):
        model = make(size, 2048, "sdpa").to(torch.bfloat16).eval()
        model.config.use_cache = True
        for batch in (2,) if tiny else (1, 64, 256):
            seconds = _timed(partial(_generate, model, batch, prompt, new), device)
            table.append([size, f"generated, {batch} at once", f"{batch * new / seconds:,.0f}", ""])
        rows = _questions(8 if tiny else 1024, model.config.vocab_size, tiny)
        seconds = _timed(partial(score_rows, model, rows, accelerator, batch_size=4 if tiny else 64), device)
        rates = (sum(len(row.tokens) for group in rows for row in group) / seconds, 4 * len(rows) / seconds)
        table.append([size, "scored, with a common beginning", *(f"{rate:,.0f}" for rate in rates)])
    print(f"Generating {new} tokens after {prompt}; scoring questions with four answers; bfloat16\n")
    print(text_table(["model", "what", "tokens/s", "answers/s"], table))


def _generate(model: Any, batch: int, prompt: int, new: int) -> None:
    tokens = torch.randint(1, model.config.vocab_size, (batch, prompt), device=model.device)
    lengths = {"max_new_tokens": new, "min_new_tokens": new}
    mask = torch.ones_like(tokens)
    generate(model, input_ids=tokens, attention_mask=mask, do_sample=True, pad_token_id=0, **lengths)


def _questions(count: int, vocabulary: int, tiny: bool) -> list[list[Row]]:
    """Groups of four rows with the same beginning, of about the lengths of CORE's questions with examples."""
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int) -> list[int]:
        return torch.randint(1, vocabulary, (length,), generator=generator).tolist()

    begin, end = (12, 3) if tiny else (400, 20)
    beginnings = [tokens(begin) for _ in range(count)]
    return [[Row(beginning + tokens(end), begin) for _ in range(4)] for beginning in beginnings]


def _timed(job: Callable[[], object], device: torch.device) -> float:
    """Seconds of the second of two runs."""
    for _ in range(2):
        began = time.perf_counter()
        with torch.inference_mode():
            job()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return seconds


def nccl(*, tiny: bool) -> None:
    """All-reduce over all GPUs of this machine, by size; with one GPU, that NCCL starts and sums."""
    world = 2 if tiny else torch.cuda.device_count()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if world == 1:
        print("one GPU: there is no link to measure; NCCL with one process only shows that it starts and sums\n")
    torch.multiprocessing.spawn(_reduce, (world, port, tiny), nprocs=world)


def _reduce(rank: int, world: int, port: int, tiny: bool) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = torch.device("cpu") if tiny else torch.device("cuda", rank)
    if not tiny:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if tiny else "nccl", rank=rank, world_size=world)
    table = []
    for mebibytes in (1,) if tiny else (1, 16, 256, 1024):
        values = torch.ones(mebibytes << 18, device=device)
        dist.all_reduce(values)
        total = values[-1].item()
        if total != world:
            raise SystemExit(f"ones summed to {total:g} over {world} processes")
        values.zero_()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(5):
            dist.all_reduce(values)
        values[-1].item()  # waits for the device
        seconds = (time.perf_counter() - began) / 5
        # What each device sends, in the best way: NCCL's tests call it the bus bandwidth.
        rate = 2 * (world - 1) / world * (mebibytes << 20) / seconds / 1e9
        table.append([mebibytes, f"{seconds * 1e3:.2f}", f"{rate:.1f}"])
    dist.destroy_process_group()
    if rank:
        return
    print(f"All-reduce over {world} processes by {'gloo' if tiny else 'NCCL'}\n")
    print(text_table(["MiB", "ms", "bus bandwidth, GB/s"], table))
