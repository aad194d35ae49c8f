"""pomegranate: the transitions of its sparse HMMs, and an import that does not change the number of torch threads.

Checked against 1.1.2.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from pomegranate.hmm import SparseHMM


def import_pomegranate() -> Any:
    """Import the package with its modules of HMMs and distributions.

    Its dependency apricot starts numba's threads, which sets the number of torch threads to all cores, in spite of
    OMP_NUM_THREADS. This function restores the number. It can be removed once apricot compiles its functions when they
    are first called.
    """
    import torch

    threads = torch.get_num_threads()
    try:
        import pomegranate
        import pomegranate.distributions
        import pomegranate.hmm
    finally:
        torch.set_num_threads(threads)
    return pomegranate


def sparse_transition(model: "SparseHMM", num_states: int) -> Float[np.ndarray, "H H"] | None:
    """The transition probabilities of a sparse HMM; None if it has none yet.

    `model.edges` is public and has a value per edge, but only `_edge_keymap` has the states of each edge. This can be
    removed once pomegranate gives the pairs; as far as we know, 1.1.2 is its last release.
    """
    edge_numbers = getattr(model, "_edge_keymap", None)
    if edge_numbers is None:
        return None
    values: Any = model._edge_log_probs
    values = values.detach().cpu().double().exp().numpy()
    transition = np.zeros((num_states, num_states))
    for (origin, target), number in edge_numbers.items():
        transition[origin, target] = values[number]
    return transition
