"""Fine-tuning that holds important weights: elastic weight consolidation and memory aware synapses."""

from torch import Tensor

from dietcl.methods.base import Net, Part, Sweep, TimeStep
from dietcl.methods.pieces.importance import Anchored, Pair, add, pairs_that_fit, with_count
from dietcl.methods.supervised_options import EWCOptions, MASOptions

FEW_PAIRS = 5  # the user is warned if fewer than these fit into the memory


class EWC(Anchored):
    """Elastic weight consolidation (Kirkpatrick et al. 2017); online after Schwarz et al. (2018)."""

    Config = EWCOptions
    config: EWCOptions
    sweep = "fisher"
    _has_warned = False

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        if self.config.fisher == "per_sample":
            return with_count(net.squared_gradients(part, Part.cross_entropy), len(part))
        gradients = net.gradients(part, Part.cross_entropy)
        return with_count({name: value.square() for name, value in gradients.items()})

    def end_step(self, net: Net, step: TimeStep) -> None:
        importance = self._take_estimate()
        if not importance:
            return
        if self.config.online and self._pairs:
            importance = add(self._pairs.pop().importance, importance, self.config.decay)
        self._pairs.append(Pair(net.copy(), importance))
        if self.config.online or self._has_warned:
            return
        room = pairs_that_fit(self._pairs)
        if room < FEW_PAIRS:
            self._has_warned = True
            net.notify(
                f"ewc: there is memory for about {max(0, int(room))} more time steps, which need "
                f"{self._pairs[-1].nbytes / 1e9:.1f} GB each; with --online it does not grow"
            )


class MAS(Anchored):
    """Memory aware synapses (Aljundi et al. 2018)."""

    Config = MASOptions
    config: MASOptions
    sweep = "importance"

    def gather(self, net: Net, sweep: Sweep, part: Part) -> dict[str, Tensor]:
        # The loss is the squared length of the outputs.
        gradients = net.gradients(part, lambda _, logits: logits.square().sum(1).mean())
        return with_count({name: value.abs() for name, value in gradients.items()})

    def end_step(self, net: Net, step: TimeStep) -> None:
        importance, decay = self._take_estimate(), self.config.decay
        if not importance:
            return
        if self._pairs:  # the first estimate is taken as it is
            fresh = {name: (1 - decay) * value for name, value in importance.items()}
            importance = add(self._pairs[0].importance, fresh, decay)
        self._pairs = [Pair(net.copy(), importance)]
