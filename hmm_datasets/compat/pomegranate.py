"""pomegranate: the transitions of its sparse HMMs, and an import that leaves torch's threads as they are.

Checked against 1.1.2.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from pomegranate.hmm import SparseHMM


def import_pomegranate() -> Any:
    """The package with the modules of its HMMs and distributions.

    Its apricot starts numba's threads, which set torch's to all cores, whatever OMP_NUM_THREADS says; torch's are
    set back. It goes once apricot compiles its functions when they are first called.
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
    """The transition probabilities of a sparse HMM; None where it has none yet.

    `model.edges` is public, a value per edge; which states an edge joins stands in `_edge_keymap` alone. It goes once
    pomegranate gives the pairs; its releases have ended with 1.1.2, as far as is known.
    """
    places = getattr(model, "_edge_keymap", None)
    if places is None:
        return None
    values: Any = model._edge_log_probs
    values = values.detach().cpu().double().exp().numpy()
    transition = np.zeros((num_states, num_states))
    for (origin, target), place in places.items():
        transition[origin, target] = values[place]
    return transition
