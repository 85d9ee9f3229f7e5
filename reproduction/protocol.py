"""How arms are measured: how their rates are searched, which seeds they get, and which images test them."""

from dataclasses import dataclass, replace

from dietcl import Evaluation
from reproduction.trials import SHORT_SEARCH, Search


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How rates are searched, which seeds are run, and what tests them."""

    search: Search = SHORT_SEARCH
    first_seed: int = 0
    tests_all_at_end: bool = False
    """Test the last time step on all test images, and earlier ones on a sample that all seeds have in common."""
    is_held_out: bool = False
    """Test on training images that are held out, as searches do, because the outcome decides what a method is."""

    def seeds(self, number: int) -> range:
        """Return so many seeds."""
        return range(self.first_seed, self.first_seed + number)

    def evaluation(self, own: Evaluation) -> Evaluation:
        """Return what is measured under this protocol."""
        return replace(own, all_at_end=True) if self.tests_all_at_end else own
