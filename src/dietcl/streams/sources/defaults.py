"""How a source's stream is cut by default; free of pyarrow, for a quick command line."""

from typing import Literal


class StreamDefaults:
    """How a source's stream is cut unless the data or the user says otherwise."""

    name: str
    recipe: Literal["class", "time", "data"] = "class"
    time_steps: int = 20
    label_rate: float = 0.01
    mirror: bool = True  # a mirrored image shows the same class
