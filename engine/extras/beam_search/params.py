"""BeamSearchParams: how to search, under vLLM's names."""

from dataclasses import dataclass

from ...checks import Flag, Integer, Number, Rule
from ...errors import InvalidRequestError

_RULES: dict[str, Rule] = {
    "beam_width": Integer(1, 10),
    "max_tokens": Integer(1, 2**31 - 1),
    "ignore_eos": Flag(),
    "temperature": Number(0.0, 100.0),
    "length_penalty": Number(-100.0, 100.0),
    "include_stop_str_in_output": Flag(),
}


@dataclass(frozen=True)
class BeamSearchParams:
    """Parameters of a beam search. Raises InvalidRequestError.

    `length_penalty`: exponent of the length by which a sum of logprobs is divided; above 0 it favours long outputs.
    `include_stop_str_in_output`: leave the end token among the tokens. `temperature` is vLLM's; only 0 and 1 are taken.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            rule.checked(name, getattr(self, name))
        if self.temperature not in (0, 1):
            raise InvalidRequestError(
                f"temperature {self.temperature} is not taken: beams are ranked by the model's own logprobs",
                param="temperature",
            )

    def num_candidates(self, num_end_tokens: int) -> int:
        """Return how many next tokens to rank, so that `beam_width` are left if the likeliest ones end."""
        num_candidates = max(2, 1 + num_end_tokens) * self.beam_width
        if num_candidates > 20:
            raise InvalidRequestError(
                f"beam_width {self.beam_width} is not taken: with {num_end_tokens} end tokens the most is "
                f"{20 // max(2, 1 + num_end_tokens)}, because a position has at most 20 logprobs",
                param="beam_width",
            )
        return num_candidates
