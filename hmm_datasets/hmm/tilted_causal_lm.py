"""A tilted HMM as a transformers causal language model: the optimal policy, behind the interface of any other.

It is the model of `causal_lm` with another filter. The logits at a position are the exact log-probabilities of the
next token of [`~hmm_datasets.hmm.tilted.TiltedHMM`], which depend on the belief of the HMM, on the number of tokens
read since the beginning of the sequence, and with rewards of pairs on the last symbol; these are the cache. Padding is
not counted. After `length` tokens the model continues as the HMM.

Importing this module registers the classes: afterwards `AutoModelForCausalLM.from_pretrained` loads any folder written
by [`~hmm_datasets.hmm.tilted.TiltedHMM.save_pretrained`]. The backward messages are computed when the model first
predicts.
"""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from .causal_lm import HMMConfig, HMMForCausalLM
from .filters import TiltedFilter
from .storage import ModelType
from .tilted import TiltedHMM


class TiltedHMMConfig(HMMConfig):
    """Sizes of a tilted HMM, its `beta` and `length`, and its beginning-of-sequence token.

    Args:
        pair_rewards (`bool`, *optional*, defaults to `False`): whether pairs of neighbouring symbols are rewarded.
        beta (`float`, *optional*, defaults to 1.0): weight of the divergence from the HMM.
        length (`int`, *optional*, defaults to 1): `L`, the number of rewarded tokens of a sequence.

    The other arguments are those of [`~hmm_datasets.hmm.causal_lm.HMMConfig`].
    """

    model_type = "tilted_hmm"

    pair_rewards: bool = False
    beta: float = 1.0
    length: int = 1


class TiltedHMMForCausalLM(HMMForCausalLM):
    """The exact optimum of post-training on a reward, as a causal language model.

    Make one from a [`~hmm_datasets.hmm.tilted.TiltedHMM`] with [`from_tilted`], or load one with `from_pretrained`.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> tilted = TiltedHMM(processes.mess3(), rewards=[0, 1, 0], beta=0.5, length=8)
    >>> model = TiltedHMMForCausalLM.from_tilted(tilted, bos_token_id=3)
    >>> model(torch.tensor([[3]])).logits[0, 0, :3].argmax().item()
    1

    ```
    """

    config_class = TiltedHMMConfig
    model_type: ClassVar[ModelType] = "tilted_hmm"

    def __init__(self, config: TiltedHMMConfig):
        super().__init__(config)
        shape = (config.num_symbols,) * (2 if config.pair_rewards else 1)
        self.rewards = nn.Parameter(torch.zeros(shape, dtype=torch.float64), requires_grad=False)
        self._tilted: TiltedHMM | None = None  # whose filters are made where the model first predicts

    @classmethod
    def from_tilted(cls, tilted: TiltedHMM, bos_token_id: int | None = None) -> Self:
        """The causal language model of `tilted`.

        Args:
            tilted ([`~hmm_datasets.hmm.tilted.TiltedHMM`]): the distribution.
            bos_token_id (`int`, *optional*): `tilted.num_symbols`, or `None` for rows without such a token.
        """
        return cls._with_tables(
            {**tilted.hmm.tables(), "rewards": tilted.rewards},
            *(tilted.hmm, bos_token_id),
            fingerprint=tilted.fingerprint(),
            pair_rewards=tilted.rewards.ndim == 2,
            beta=tilted.beta,
            length=tilted.length,
        )

    @classmethod
    def from_process(cls, process: Any, bos_token_id: int | None = None) -> Self:
        return cls.from_tilted(process, bos_token_id)

    def to_process(self) -> TiltedHMM:
        """The tilted HMM; raises `InputError` if its tables or settings are not those of one."""
        return TiltedHMM(self.to_hmm(), self.rewards.detach().cpu().numpy(), self.config.beta, self.config.length)

    def _filter(self) -> TiltedFilter:
        if self._tilted is None:
            self._tilted = self.to_process()
        return self._tilted.filter(self.start.device)

    def _beliefs_in(self, memories: Tensor) -> Tensor:
        # After an impossible token all logarithms are -inf, where a softmax is not a number.
        return memories[..., :-2].softmax(-1).nan_to_num(0.0)


AutoConfig.register("tilted_hmm", TiltedHMMConfig, exist_ok=True)
AutoModelForCausalLM.register(TiltedHMMConfig, TiltedHMMForCausalLM, exist_ok=True)
