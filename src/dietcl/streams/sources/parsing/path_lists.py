"""Where the images of a table lie: tables name them by paths that begin in one folder or another."""

from collections.abc import Sequence

from dietcl.errors import UserError
from dietcl.streams.filesystem import Place

_LOOKED_FOR = 100  # images, spread over a table: some of a large set are always missing


def find_images(place: Place, folders: Sequence[str], paths: Sequence[str], remedy: str = "is it whole?") -> str:
    """Return the first of some folders in which images of a table are found; paths alone would promise nothing."""
    sample = paths[:: max(1, len(paths) // _LOOKED_FOR)]
    for folder in folders:
        if any(place.has(inside(folder, path)) for path in sample):
            return folder
    if not sample:
        return folders[0]
    raise UserError(
        f"{place.path(inside(folders[0], sample[0]))}: no such image, nor any other of {len(sample)} that were looked "
        f"for; {remedy}"
    )


def inside(folder: str, path: str) -> str:
    """Return a path inside a folder of the place, or in the place itself if the folder has no name."""
    return f"{folder}/{path}" if folder else path
