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
    encoder_pass: int  # backward as far as the encoder learns
    masked_forward: int = 0  # these four are 0 if patches cannot be masked
    masked_pass: int = 0
    decoder_forward: int = 0
    decoder_pass: int = 0
    prompts: dict[str, Polynomial]  # the encoder's share of each operation in PROMPTED; empty if it takes no prompts
    features: int
    whole: "CostModel | None" = None  # the costs if all of the encoder learned, where only a part does

    @classmethod
    def from_json(cls, costs: dict[str, Any]) -> "CostModel":
        """Return the costs that dataclasses.asdict turned into JSON."""
        prompts = {name: tuple(values) for name, values in costs["prompts"].items()}
        whole = cls.from_json(costs["whole"]) if costs.get("whole") else None
        return cls(**{**costs, "prompts": prompts, "whole": whole})

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

    def train_flops(self, classes: int) -> int:
        """Return the FLOPs of an image with gradient: a pass, or less if only a part of the encoder learns."""
        is_frozen = self.encoder_pass == self.encoder_forward  # then the features need no gradient
        return self.encoder_pass + (self.head_train(classes) if is_frozen else self.head_pass(classes))

    def pass_flops(self, classes: int) -> int:
        """Return the FLOPs of one pass through the complete network, the unit of cost."""
        return (self.whole or self).train_flops(classes)

    def per_image(self, operation: Operation, classes: int, prompts: int = 0) -> float | None:
        """Return the price under `images` accounting, less if only a part learns; None: it has no price by image."""
        price = PER_IMAGE.get(operation)
        if price is None or self.whole is None:
            return price
        return price * self.flops(operation, classes, prompts) / self.whole.flops(operation, classes, prompts)

    def flops(self, operation: Operation, classes: int, prompts: int = 0) -> int:
        """Return the FLOPs of any operation."""
        if (prompts > 0) != (operation in PROMPTED):
            raise ValueError(f"The operation {operation!r} cannot be done with {prompts} prompt tokens.")
        if operation in PROMPTED:
            head = self.head_forward if operation == "prompt_forward" else self.head_pass
            return self.prompted(operation, prompts) + head(classes)
        costs: dict[str, int] = {
            "train": self.train_flops(classes),
            "importance": self.train_flops(classes),
            "forward": self.encoder_forward + self.head_forward(classes),
            "reconstruct": self.masked_pass + self.decoder_pass,
            "reconstruct_forward": self.masked_forward + self.decoder_forward,
            "head_train": self.head_train(classes),
            "head_forward": self.head_forward(classes),
        }
        if operation not in costs:
            raise ValueError(f"There is no operation {operation!r}; choose from {', '.join(get_args(Operation))}.")
        return costs[operation]
