"""FLOPs of every operation for one image; one multiply-add is two FLOPs."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

Operation = Literal[
    "train",  # forward and backward through encoder and head
    "importance",  # the same for a Fisher or importance estimate
    "forward",  # encoder and head without gradient
    "reconstruct",  # masked encoder and decoder, forward and backward
    "reconstruct_forward",  # masked encoder and decoder without gradient
    "prompt",  # forward with prompt tokens through frozen weights, backward to the prompts and the head
    "prompt_train",  # forward with prompt tokens, backward to all weights
    "prompt_forward",  # forward with prompt tokens without gradient
    "head_train",  # the head alone, forward and backward on given features
    "head_forward",  # the head alone on given features
]
PROMPTED: tuple[Operation, ...] = ("prompt", "prompt_train", "prompt_forward")
# Prices in passes under `images` accounting; other operations cost their FLOPs under both kinds.
PER_IMAGE: dict[Operation, float] = {
    **dict.fromkeys(("train", "importance", "reconstruct", "prompt", "prompt_train"), 1.0),
    **dict.fromkeys(("forward", "prompt_forward", "reconstruct_forward"), 1 / 3),
}
Accounting = Literal["images", "flops"]
Polynomial = tuple[int, int, int]  # attention makes the cost quadratic in the number of tokens


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """FLOPs for one image; a pass is forward and backward, without the gradient of the image itself."""

    encoder_forward: int
    encoder_pass: int
    masked_forward: int
    masked_pass: int
    decoder_forward: int
    decoder_pass: int
    prompts: dict[str, Polynomial]  # the encoder's share of each operation in PROMPTED
    features: int

    @classmethod
    def from_json(cls, costs: dict[str, Any]) -> "CostModel":
        """Return the costs that dataclasses.asdict turned into JSON."""
        return cls(**{**costs, "prompts": {name: tuple(costs["prompts"][name]) for name in PROMPTED}})

    def prompted(self, operation: Operation, num_prompts: int) -> int:
        """Return the FLOPs of the encoder with this many prompts."""
        constant, linear, quadratic = self.prompts[operation]
        return constant + linear * num_prompts + quadratic * num_prompts**2

    def head_forward(self, classes: int) -> int:
        """Return the FLOPs of the head's forward."""
        return 2 * self.features * classes

    def head_pass(self, classes: int) -> int:
        """Return the FLOPs of the head's forward and backward, with the gradient of the features."""
        return 3 * self.head_forward(classes)

    def head_train(self, classes: int) -> int:
        """Return the FLOPs of the head's forward and backward on given features, which need no gradient."""
        return 2 * self.head_forward(classes)

    def pass_flops(self, classes: int) -> int:
        """Return the FLOPs of one pass, the unit of cost."""
        return self.encoder_pass + self.head_pass(classes)

    def flops(self, operation: Operation, classes: int, prompts: int = 0) -> int:
        """Return the FLOPs of any operation."""
        if (prompts > 0) != (operation in PROMPTED):
            raise ValueError(f"The operation {operation!r} cannot be done with {prompts} prompt tokens.")
        if operation in PROMPTED:
            head = self.head_forward if operation == "prompt_forward" else self.head_pass
            return self.prompted(operation, prompts) + head(classes)
        costs: dict[str, int] = {
            "train": self.pass_flops(classes),
            "importance": self.pass_flops(classes),
            "forward": self.encoder_forward + self.head_forward(classes),
            "reconstruct": self.masked_pass + self.decoder_pass,
            "reconstruct_forward": self.masked_forward + self.decoder_forward,
            "head_train": self.head_train(classes),
            "head_forward": self.head_forward(classes),
        }
        if operation not in costs:
            raise ValueError(f"There is no operation {operation!r}; choose from {', '.join(get_args(Operation))}.")
        return costs[operation]
