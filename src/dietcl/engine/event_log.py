"""events.jsonl: one JSON object per line, in the order things happened."""

import json
import os
from pathlib import Path
from typing import IO


class EventLog:
    """Appends events to a file; what was written after a checkpoint can be taken back."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(min(keep, path.stat().st_size))
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, event: str, **fields: object) -> None:
        """Append one event."""
        self._file.write(json.dumps({"event": event, **fields}, ensure_ascii=False) + "\n")
        self._file.flush()

    def sync(self) -> int:
        """Make sure that all of it outlives a loss of power; returns its length in bytes."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
