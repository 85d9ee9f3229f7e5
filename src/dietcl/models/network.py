"""The complete network and its initial weights."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dietcl import rng
from dietcl.errors import UserError
from dietcl.models.decoder import Decoder, mask_of, normalized_targets, paint, patchify, reconstruction_loss
from dietcl.models.encoder import Encoder, TokenEncoder, build_encoder
from dietcl.models.head import GrowingHead
from dietcl.models.lora import adapter_names, add_adapters, merge_adapters
from dietcl.models.presets import ModelConfig
from dietcl.streams.options import MEAN, STD

Weights = Mapping[str, Tensor]  # by the names that Network.named_parameters() gives


class Network(nn.Module):
    """Encoder, head, and a decoder if patches can be masked; it has no forward, because only `Net` may run it."""

    pixel_scale: Tensor
    pixel_shift: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder: Encoder = build_encoder(config)
        self.decoder: Decoder | None = None
        if "patches" in self.encoder.abilities:
            self.decoder = Decoder(config, self.tokens)
            if self.kept_patches < 1:
                patches = f"{self.tokens.num_patches} patches visible at --image-size {config.image_size}"
                fault = f"leaves none of the {patches}; lower the ratio or take larger images"
                raise UserError(f"--mask-ratio {config.mask_ratio}: {fault}")
        self.head = GrowingHead(self.encoder.dim)
        self.expect_pixels(*self.encoder.pixel_statistics)
        if isinstance(self.encoder, TokenEncoder):
            self.encoder.apply(_initialize)
        if self.decoder is not None:
            self.decoder.apply(_initialize)
        self._limit_training()

    def expect_pixels(self, mean: Iterable[float], std: Iterable[float]) -> None:
        """Set the mean and deviation by channel, of pixels from 0 to 1, that the encoder's images have."""
        # Images are standardized in one way; pre-trained encoders expect the statistics of their own data.
        self.pixel_mean, self.pixel_std = tuple(mean), tuple(std)
        means, stds = (torch.tensor(values).reshape(3, 1, 1) for values in (self.pixel_mean, self.pixel_std))
        self.register_buffer("pixel_scale", STD / stds, persistent=False)
        self.register_buffer("pixel_shift", (MEAN - means) / stds, persistent=False)

    @property
    def kept_patches(self) -> int:
        """The number of patches that the encoder sees when it reconstructs."""
        return int(self.tokens.num_patches * (1 - self.config.mask_ratio))

    @property
    def tokens(self) -> TokenEncoder:
        """The encoder, if it has tokens; methods that need them are refused before they run without."""
        assert isinstance(self.encoder, TokenEncoder)
        return self.encoder

    @property
    def is_frozen(self) -> bool:
        """Whether no weight of the encoder may be trained."""
        return self.config.train == "head"

    def features(self, images_BCHW: Tensor, weights: Weights | None = None) -> Tensor:
        """Return the pooled features of each image, under the network's weights or under others."""
        return self._run("encoder", weights, self._as_pretrained(images_BCHW), output="features")

    def query(self, images_BCHW: Tensor, weights: Weights | None = None) -> Tensor:
        """Return the class token of each image, or the features if there is none."""
        return self._run("encoder", weights, self._as_pretrained(images_BCHW), output="query")

    def prompted(self, images_BCHW: Tensor, prompts_BPD: Tensor, weights: Weights | None = None) -> Tensor:
        """Return the mean output token of each image's prompts."""
        tokens_BND = self._run("encoder", weights, self._as_pretrained(images_BCHW), prompts_BPD=prompts_BPD)
        first = self.tokens.prefix
        return tokens_BND[:, first : first + prompts_BPD.shape[1]].mean(dim=1)

    def stages(self, images_BCHW: Tensor, count: int) -> list[Tensor]:
        """Return maps of patch tokens [B, dim, grid, grid] from `count` depths of the encoder, including the last."""
        return self.tokens.stages(self._as_pretrained(images_BCHW), count)

    def logits_of(self, features_BD: Tensor, weights: Weights | None = None) -> Tensor:
        """Return the logits of all classes so far, or of those of the given weights."""
        return self._run("head", weights, features_BD)

    def reconstruct(self, images_BCHW: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return each image's loss [B], predictions [B, patches, values] and mask [B, patches], true if hidden."""
        assert self.decoder is not None
        images_BCHW = self._as_pretrained(images_BCHW)
        patches = self.tokens.num_patches
        keep_BK = random_keep(len(images_BCHW), patches, self.kept_patches, generator).to(images_BCHW.device)
        predictions_BPV = self.decoder(self.encoder(images_BCHW, keep_BK), keep_BK)
        mask_BP = mask_of(keep_BK, patches)
        targets_BPV = normalized_targets(patchify(images_BCHW, self.tokens.patch))
        return reconstruction_loss(predictions_BPV, targets_BPV, mask_BP), predictions_BPV, mask_BP

    def paint(self, images_BCHW: Tensor, predictions_BPV: Tensor, mask_BP: Tensor) -> Tensor:
        """Return the images with their masked patches replaced by the predictions."""
        painted_BCHW = paint(self._as_pretrained(images_BCHW), predictions_BPV, mask_BP, self.tokens.patch)
        return (painted_BCHW - self.pixel_shift) / self.pixel_scale

    def merged_state(self, weights: Weights | None = None) -> dict[str, Tensor]:
        """Return the weights, some replaced by others, with all adapters merged into the layers that they adapt."""
        return dict(merge_adapters({**self.state_dict(), **(weights or {})}, adapter_names(self)))

    def _limit_training(self) -> None:
        """Let only those weights of the encoder learn that the configuration names."""
        train, model = self.config.train, self.encoder.model
        if train == "full":
            return
        if train == "lora" and not add_adapters(model, self.config.lora_rank, self.config.lora_targets):
            what = f"{self.config.encoder} has no linear layers in {self.config.lora_targets.replace(',', ' or ')}"
            raise UserError(f"--train lora: {what} to adapt; choose full, head or last-2")
        if train.startswith("last") and "layers" not in self.encoder.abilities:
            raise UserError(f"--train {train}: {self.config.encoder} does not say which layers are its last; give full")
        trained = adapter_names(model)
        if train.startswith("last"):
            first = self.encoder.depth - int(train.removeprefix("last-")) + 1
            if first < 1:
                what = f"{self.config.encoder} has only {self.encoder.depth} layers"
                raise UserError(f"--train {train}: {what}; give last-{self.encoder.depth} at most, or full")
            trained = {name for name, layer in self.encoder.layers().items() if layer >= first}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trained)

    def _run(self, part: str, weights: Weights | None, *inputs: Tensor, **options: Any) -> Tensor:
        module = self.get_submodule(part)
        if weights is None:
            output: Tensor = module(*inputs, **options)
        else:
            output = functional_call(module, below(part, weights), inputs, options)
        return output

    def _as_pretrained(self, images_BCHW: Tensor) -> Tensor:
        return images_BCHW * self.pixel_scale + self.pixel_shift


def build_network(config: ModelConfig, seed: int, device: torch.device | str = "cpu") -> Network:
    """Return a network whose initial weights depend on the config and the seed alone."""
    # Weights are drawn on the CPU, so that every device starts from the same ones; meta has none to draw.
    with rng.seeded(seed, "initial weights"), torch.device("meta" if str(device) == "meta" else "cpu"):
        network = Network(config)
    return network.to(device)


def random_keep(batch: int, patches: int, keep: int, generator: torch.Generator) -> Tensor:
    """Return for each image the numbers [B, K] of the patches that stay visible, in random order."""
    noise_BP = torch.rand(batch, patches, generator=generator, device=generator.device)
    return noise_BP.argsort(dim=1)[:, :keep]


def below(part: str, weights: Weights) -> dict[str, Tensor]:
    """Return the weights of a part by their names in it."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _initialize(module: nn.Module) -> None:
    # The masked autoencoder's own initialization: timm's narrow normal trains slowly at small widths.
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight.view(len(module.weight), -1))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
