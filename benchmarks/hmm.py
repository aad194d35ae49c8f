"""HMMs: drawing, inference and fitting, this package beside hmmlearn, pomegranate and dynamax, in one run.

    pip install -e ".[bench]"
    python benchmarks/hmm.py [--part sampling tokens inference fitting epoch] [--seconds 3]

Prints machine, versions, then a table a part: rates, how many times faster ours is, and what bounds it. Everything is
timed after a warm-up that compiles it. Run it on a quiet machine. With a CUDA device its rows are added.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from inference import inference
from machine import CORES, print_heading
from tokenizers import Tokenizer, models

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import PermutedEmissions
from hmm_datasets.hmm.fitting.baum_welch import batch_rows
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.kernels.draws import EMISSIONS_STREAM, LANES, philox_block, pick, shuffle, shuffle_buffer
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.sampling import smallest_unsigned
from hmm_datasets.hmm.structured.tokenized import tokenized
from hmm_datasets.report.tables import text_table

LENGTH = 100
EPOCHS = 2


def main() -> None:
    """Time what was asked for; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"sampling": sampling, "tokens": tokens, "inference": inference, "fitting": fitting, "epoch": epoch}
    parser.add_argument("--part", nargs="*", choices=parts, default=list(parts))
    parser.add_argument("--seconds", type=float, default=3.0, help="time given to each draw at least")
    settings = parser.parse_args()
    print_heading(("numpy", "numba", "torch", "hmmlearn", "pomegranate", "dynamax", "jax"))
    if torch.cuda.is_available():
        print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    for part in settings.part:
        parts[part](settings)


def sampling(settings: argparse.Namespace) -> None:
    """Tokens a second of every sampler; then of the parts of ours."""
    for states, symbols in ((200, 200), (500, 100)):
        hmm = processes.random(states, symbols, seed=0)
        draws = {
            f"hmm-datasets, {CORES} threads": (_ours(hmm, None), 200_000),
            "hmm-datasets, 1 thread": (_ours(hmm, 1), 100_000),
            f"  a permutation a sequence, {CORES} threads": (_ours(PermutedEmissions(hmm), None), 200_000),
            "hmmlearn": (_hmmlearn(hmm), 100),
            "pomegranate": (_pomegranate(hmm), 2),
            "dynamax, jitted and vmapped": (_dynamax(hmm), 1000),
        }
        if torch.cuda.is_available():
            draws["hmm-datasets, CUDA"] = (_on_cuda(hmm), 1 << 22)
        rates = {name: _rate(draw, count, settings.seconds) for name, (draw, count) in draws.items()}
        ours = next(iter(rates.values()))
        rows = [[name, f"{rate:,.0f}", f"{ours / rate:,.2f}"] for name, rate in rates.items()]
        print(f"\nDrawing: H={states}, E={symbols}, sequences of {LENGTH}, one byte per token\n")
        print(text_table(["sampler", "tokens/s", "ours is times faster"], rows))
        _print_bounds(hmm, states)


def tokens(settings: argparse.Namespace) -> None:
    """Tokens of an HMM a second, beside symbols that are drawn and then cut by the library of tokenizers."""
    for name, size in (("mess3()", 64), ("context_trees(8, 2, alpha=0.5, stop=0.1)", 512)):
        source = load_source(name)
        hmm = source if isinstance(source, HMM) else source.hmm_at(0, 0)
        process = tokenized(hmm, size)
        pieces = ["".join(chr(0x10000 + symbol) for symbol in piece) for piece in process.tokenizer.pieces]
        merges = [(pieces[left], pieces[right]) for left, right in process.tokenizer.rules]
        library = Tokenizer(models.BPE({piece: token for token, piece in enumerate(pieces)}, merges))
        num_symbols = round(LENGTH * process.mean_length)

        def cut_by_library(count: int, hmm=hmm, library=library, num_symbols=num_symbols) -> None:
            rows = hmm.sample(count, num_symbols, num_threads=1).tolist()
            library.encode_batch(["".join(chr(0x10000 + symbol) for symbol in row) for row in rows])

        draws = {
            "hmm-datasets, 1 thread": (_ours(process, 1), 2000),
            f"drawn by 1 thread, cut by tokenizers on {CORES}": (cut_by_library, 500),
        }
        rates = {name: _rate(draw, count, settings.seconds) for name, (draw, count) in draws.items()}
        ours = next(iter(rates.values()))
        rows = [[name, f"{rate:,.0f}", f"{ours / rate:,.2f}"] for name, rate in rates.items()]
        print(f"\nTokens of {name}, {size} by BPE, {process.mean_length:.2f} symbols each, sequences of {LENGTH}\n")
        print(text_table(["sampler", "tokens/s", "ours is times faster"], rows))


def fitting(settings: argparse.Namespace) -> None:
    """Seconds an epoch of Baum-Welch on the same sequences from the same guess, and the likelihoods it leads to."""
    for states, num_rows in ((50, 1024), (200, 128)):  # what the slowest do in some tens of seconds
        tokens = processes.random(states, states, alpha=0.3, seed=1).sample(num_rows, LENGTH, seed=2).astype(np.int64)
        guess = random_guess(states, states, seed=3)
        fits = {
            "hmm-datasets, float32": lambda *given: _fit(*given, "float32"),
            "hmm-datasets, float64": lambda *given: _fit(*given, "float64"),
            "hmmlearn, implementation log (its default)": lambda *given: _fit_hmmlearn(*given, "log"),
            "hmmlearn, implementation scaling": lambda *given: _fit_hmmlearn(*given, "scaling"),
            "dynamax, jitted and vmapped, float64": _fit_dynamax,
            "pomegranate, float32, ends set back": _fit_pomegranate,
        }
        if torch.cuda.is_available():
            fits["hmm-datasets, float32, CUDA"] = lambda *given: _fit(*given, "float32", "cuda")
        found = {name: fit(tokens, guess) for name, fit in fits.items()}
        ours, reference = (
            found["hmm-datasets, float32"][0],
            found["hmm-datasets, float64"][1].log_likelihood(tokens).sum(),
        )
        rows = []
        for name, (seconds, hmm) in found.items():
            score = hmm.log_likelihood(tokens).sum()
            off = "" if name == "hmm-datasets, float64" else f"{(score - reference) / abs(reference):+.1e}"
            rows.append([name, f"{tokens.size / seconds:,.0f}", f"{seconds / ours:,.1f}", f"{score:.4f}", off])
        print(f"\nFitting: H=E={states}, {len(tokens)} sequences of {LENGTH}, {EPOCHS} epochs, no prior\n")
        print(text_table(["fit", "tokens/s", "ours is times faster", "log-likelihood after", "relative"], rows))
        _print_products(states, 2048)


def epoch(settings: argparse.Namespace) -> None:
    """One whole epoch at the size of TinyStories' hundred commonest words: 74,514 rows of 100, 500 states."""
    tokens = processes.random(500, 100, alpha=0.3, seed=1).sample(74_514, LENGTH, seed=2)
    devices = [("cpu", "float32"), *([("cuda", "float32")] if torch.cuda.is_available() else [])]
    print(f"\nAn epoch of {tokens.size:,} tokens, H=500, E=100\n")
    rows = []
    for device, dtype in devices:
        settings = FitSettings(500, max_epochs=1, tolerance=0, dtype=dtype)
        rate = fit_hmm(tokens, settings, num_symbols=100, device=device).history[0]["tokens_per_second"]
        rows.append([f"hmm-datasets, {device}, {dtype}", f"{rate:,.0f}", f"{tokens.size / rate:.1f}"])
    print(text_table(["fit", "tokens/s", "seconds per epoch"], rows))


def _fit(tokens: np.ndarray, guess: HMM, dtype: str, device: str = "cpu") -> tuple[float, HMM]:
    settings = FitSettings(guess.num_states, max_epochs=EPOCHS, tolerance=0, pseudocount=0, dtype=dtype)
    result = fit_hmm(
        tokens, settings, initial=guess, num_symbols=guess.num_symbols, device=device, show_progress=False
    )
    return tokens.size / max(row["tokens_per_second"] for row in result.history), result.hmm


def _fit_hmmlearn(tokens: np.ndarray, guess: HMM, implementation: str) -> tuple[float, HMM]:
    model = guess.to_hmmlearn()
    model.n_iter, model.tol, model.implementation = 1, -np.inf, implementation
    flat, lengths = tokens.reshape(-1, 1), [tokens.shape[1]] * len(tokens)
    return _quickest(lambda: model.fit(flat, lengths)), HMM.from_hmmlearn(model)


def _fit_pomegranate(tokens: np.ndarray, guess: HMM) -> tuple[float, HMM]:
    model = guess.to_pomegranate()
    tokens = torch.from_numpy(tokens)[:, :, None]

    def step() -> None:
        for part in tokens.split(16):
            model.summarize(part)
        model.from_summaries()
        # Its learned end probabilities would weigh the last states of the next epoch; without them it is plain EM.
        with torch.no_grad():
            model.edges -= model.edges.logsumexp(1, keepdim=True)
            model.ends.zero_()

    return _quickest(step), HMM.from_pomegranate(model, ends="drop")


def _fit_dynamax(tokens: np.ndarray, guess: HMM) -> tuple[float, HMM]:
    import jax
    from dynamax.hidden_markov_model import CategoricalHMM

    with jax.enable_x64(True):
        # Its priors are concentrations: one adds nothing to the counts.
        priors = ("initial_probs_concentration", "transition_matrix_concentration", "emission_prior_concentration")
        model = CategoricalHMM(guess.num_states, 1, guess.num_symbols, **dict.fromkeys(priors, 1.0))
        tables = {"initial_probs": guess.start, "transition_matrix": guess.transition}
        tables["emission_probs"] = guess.emission[:, None]
        tables = {name: jax.numpy.asarray(table) for name, table in tables.items()}
        parameters, properties = model.initialize(**tables)
        rows = jax.numpy.asarray(tokens)[:, :, None]

        @jax.jit
        def em_step(parameters, state):
            statistics = jax.vmap(lambda row: model.e_step(parameters, row))(rows)[0]
            return model.m_step(parameters, properties, statistics, state)

        state = model.initialize_m_step_state(parameters, properties)
        jax.block_until_ready(em_step(parameters, state))

        def step() -> None:
            nonlocal parameters, state
            parameters, state = jax.block_until_ready(em_step(parameters, state))

        seconds = _quickest(step)
        found = parameters.initial.probs, parameters.transitions.transition_matrix, parameters.emissions.probs[:, 0]
        start, transition, emission = map(np.array, found)
    return seconds, HMM(start=start, transition=transition, emission=emission, normalize=True)


def _quickest(step: Callable[[], object]) -> float:
    times = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return min(times)


def _print_products(states: int, num_rows: int) -> None:
    """What share of the machine's matrix-product rate an epoch reaches: it holds `6 H^2` operations per token."""
    tokens = processes.random(states, states, alpha=0.3, seed=1).sample(num_rows, LENGTH, seed=2).astype(np.int64)
    guess = random_guess(states, states, seed=3)
    rows = []
    for dtype in ("float32", "float64"):
        batch = batch_rows(tokens.shape, states, getattr(torch, dtype), torch.device("cpu"))
        reached = tokens.size * 6 * states**2 / _fit(tokens, guess, dtype)[0] / 1e9
        limit = _products(batch, states, getattr(torch, dtype))
        rows.append([dtype, f"{batch} x {states}", f"{limit:.0f}", f"{reached:.0f}", f"{reached / limit:.0%}"])
    print(f"\nMatrix products of ours, {num_rows:,} sequences, {CORES} threads\n")
    print(text_table(["type", "shape", "products alone, GFLOP/s", "in an epoch", "share"], rows))


def _products(rows: int, states: int, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """GFLOP/s of `(rows, H) @ (H, H)`, one product a thread at once, as an epoch runs them."""

    def work(_: int) -> float:
        left, right = torch.rand(rows, states, dtype=dtype), torch.rand(states, states, dtype=dtype)
        out, count, began = torch.empty(rows, states, dtype=dtype), 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            torch.mm(left, right, out=out)
            count += 1
        return 2 * rows * states**2 * count / (time.perf_counter() - began) / 1e9

    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = sum(pool.map(work, range(threads)))
    torch.set_num_threads(threads)
    return found


def _rate(draw: Callable[[int], None], sequences: int, seconds: float) -> float:
    """Tokens a second of `draw(num_sequences)`, after a warm-up, over at least the time given."""
    draw(sequences)
    drawn, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        draw(sequences)
        drawn += sequences * LENGTH
    return drawn / (time.perf_counter() - began)


def _print_bounds(hmm: HMM, states: int) -> None:
    """One thread of ours beside its parts, which take turns: of each the best of many short rounds."""
    room = np.empty((20_000, LENGTH), np.uint8)  # written to by all, so that no page of it is new
    family = PermutedEmissions(hmm)
    name, shuffles = "hmm-datasets, 1 thread", f"shuffles of {states} alone (one a sequence)"
    parts = {
        name: lambda out: hmm.sample(len(out), LENGTH, num_threads=1, out=out),
        "  a permutation a sequence": lambda out: family.sample(len(out), LENGTH, num_threads=1, out=out),
        "the generator alone (Philox4x32-10)": _generator_alone,
        "the look-ups alone (words of a cheap recurrence)": _look_ups_alone(hmm),
        "the stores alone (one byte per token)": _stores_alone,
        shuffles: _shuffles_alone(states),
    }
    seconds = dict.fromkeys(parts, float("inf"))
    for turn in range(40):
        for part, work in parts.items():
            began = time.perf_counter()
            work(room)
            if turn > 0:  # the first compiles
                seconds[part] = min(seconds[part], time.perf_counter() - began)
    seconds["the first and the shuffles, one after the other"] = seconds[name] + seconds[shuffles]
    rates = {part: room.size / least for part, least in seconds.items()}
    rows = [[part, f"{rate:,.0f}", f"{rates[name] / rate:.0%}"] for part, rate in rates.items()]
    print("\nWhat bounds one thread of ours\n")
    print(text_table(["part", "tokens/s", "ours is at"], rows))


def _ours(source: Process, num_threads: int | None) -> Callable[[int], None]:
    # Into an array that is there, as a training loop would: fresh pages cost the system more than the draw.
    rooms: dict[int, np.ndarray] = {}

    def draw(count: int) -> None:
        out = rooms.setdefault(count, np.empty((count, LENGTH), smallest_unsigned(source.num_symbols)))
        source.sample(count, LENGTH, num_threads=num_threads, out=out)

    return draw


def _on_cuda(hmm: HMM) -> Callable[[int], None]:
    out = torch.empty(0, dtype=torch.uint8, device="cuda")

    def draw(count: int) -> None:
        nonlocal out
        if len(out) != count:
            out = torch.empty(count, LENGTH, dtype=torch.uint8, device="cuda")
        hmm.sample(count, LENGTH, out=out)
        torch.cuda.synchronize()

    return draw


def _hmmlearn(hmm: HMM) -> Callable[[int], None]:
    model = hmm.to_hmmlearn()

    def draw(count: int) -> None:
        for _ in range(count):
            model.sample(LENGTH)

    return draw


def _pomegranate(hmm: HMM) -> Callable[[int], None]:
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    # Its sampler needs rows and ends that sum to one, and a length of its own.
    model = DenseHMM(
        [Categorical([row.tolist()]) for row in hmm.emission],
        edges=(hmm.transition * (1 - 1e-7)).tolist(),
        starts=hmm.start.tolist(),
        ends=[1e-7] * hmm.num_states,
        sample_length=LENGTH,
    )
    return lambda count: model.sample(count)


def _dynamax(hmm: HMM) -> Callable[[int], None]:
    import jax
    from dynamax.hidden_markov_model import CategoricalHMM

    model = CategoricalHMM(hmm.num_states, 1, hmm.num_symbols)
    tables = {"initial_probs": hmm.start, "transition_matrix": hmm.transition, "emission_probs": hmm.emission[:, None]}
    tables = {name: jax.numpy.asarray(table) for name, table in tables.items()}
    parameters, _ = model.initialize(jax.random.PRNGKey(0), method="prior", **tables)
    draw = jax.jit(jax.vmap(lambda key: model.sample(parameters, key, LENGTH)[1]))
    return lambda count: draw(jax.random.split(jax.random.PRNGKey(1), count)).block_until_ready()


@numba.njit(nogil=True)
def _generator_alone(out: np.ndarray) -> None:
    mask = np.uint64(0xFFFFFFFF)
    for n in range(0, out.shape[0] - LANES + 1, LANES):
        for t in range(out.shape[1]):
            for lane in range(LANES):
                index = np.uint64(n + lane)
                words = philox_block(index & mask, np.uint64(0), np.uint64(t) & mask, np.uint64(0), mask, mask)
                out[n + lane, t] = words[0] ^ words[1] ^ words[2] ^ words[3]


def _look_ups_alone(hmm: HMM) -> Callable[[np.ndarray], None]:
    _, symbol, transition = hmm._alias_tables

    @numba.njit(nogil=True)
    def walk(symbol, e_bits, transition, t_bits, out):
        state = np.zeros(LANES, np.uint64)
        word = np.uint64(1)
        for n in range(0, out.shape[0] - LANES + 1, LANES):
            for t in range(np.uint64(out.shape[1])):
                for lane in range(np.uint64(LANES)):
                    word = word * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                    high, low = word >> np.uint64(32), (word >> np.uint64(8)) & np.uint64(0xFFFFFFFF)
                    out[n + lane, t] = pick(symbol, state[lane], e_bits, high, low)
                    state[lane] = pick(transition, state[lane], t_bits, low, high)

    return lambda out: walk(*symbol.flat, *transition.flat, out)


@numba.njit(nogil=True)
def _stores_alone(out: np.ndarray) -> None:
    for n in range(0, out.shape[0] - LANES + 1, LANES):
        for t in range(out.shape[1]):
            for lane in range(LANES):
                out[n + lane, t] = t


def _shuffles_alone(size: int) -> Callable[[np.ndarray], None]:
    @numba.njit(nogil=True)
    def run(permutation, buffer, count):
        for number in range(count):
            shuffle(permutation, buffer, np.uint64(number), EMISSIONS_STREAM, np.uint64(7))

    return lambda out: run(np.empty(size, np.uint16), shuffle_buffer(size), len(out))


if __name__ == "__main__":
    main()
