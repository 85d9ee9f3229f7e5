"""What a source of images states about its stream, and what a reader of users' data does."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from dietcl.errors import UserError

if TYPE_CHECKING:  # the command line looks at the options of sources, and should not wait for pyarrow
    from dietcl.streams.filesystem import FileRoot
    from dietcl.streams.manifest_builder import ManifestBuilder


class StreamDefaults:
    """How a source's stream is cut unless the data or the user says otherwise."""

    name: str
    recipe: Literal["class", "time", "data"] = "class"
    time_steps: int = 20
    label_rate: float = 0.01
    mirror: bool = True  # a mirrored image shows the same class


class Reader(StreamDefaults, ABC):
    """A kind of data: a frozen dataclass of its options."""

    @staticmethod
    @abstractmethod
    def fits(file_root: "FileRoot", name: str) -> bool:
        """Return whether this looks like data of this kind."""

    @abstractmethod
    def read(self, name: str, rows: "ManifestBuilder") -> None:
        """Add every image of the file `name` in `rows.file_root`, or of the whole folder if the name is empty."""


class GeneralReader(Reader):
    """A layout of users' own images: every label is revealed, and test images are drawn where none are named."""

    label_rate = 1.0
    test_share: float

    def __post_init__(self) -> None:
        if not 0 <= self.test_share < 1:
            raise UserError(f"--test-share {self.test_share}: give a share from 0 to below 1")
