"""Lists and one-dimensional tensors saved by torch, loaded without running code from the file."""

import pickle
import zipfile
from collections.abc import Sequence
from typing import Any

from dietcl.errors import UserError, reason
from dietcl.streams.filesystem import FileRoot

_ADVICE = "download it again from its official release"


def load_list(file_root: FileRoot, file: str) -> Sequence[Any]:
    """Return the values of a list, tuple or tensor; 39 million paths take 8.1 GiB of memory while they are loaded."""
    import torch

    path = file_root.path(file)
    try:
        with file_root.open(file) as source:
            is_zip = source.read(4) == b"PK\3\4"
            claimed = sum(member.file_size for member in zipfile.ZipFile(source).infolist()) if is_zip else 0
            if claimed > source.seek(0, 2):  # a zip bomb: torch.save compresses nothing
                fault = f"it claims to hold {claimed:,} bytes, more than the file has"
                raise UserError(f"{path}: refused; {fault}; {_ADVICE}")
            source.seek(0)
            mmap = is_zip and file_root.is_local
            found = torch.load(path if mmap else source, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError:
        fault = "it is damaged, or holds Python objects whose loading could run code"
        raise UserError(f"{path}: refused; {fault}; {_ADVICE}") from None
    except UserError:
        raise
    except Exception as error:  # damaged bytes raise anything
        raise UserError(f"{path}: cannot be read ({reason(error)}); {_ADVICE}") from None
    if isinstance(found, list | tuple):
        return found
    is_plain = isinstance(found, torch.Tensor) and found.layout == torch.strided and found.device.type == "cpu"
    # A tensor that is not contiguous may claim more numbers than its file has.
    if is_plain and found.dim() == 1 and found.is_contiguous():
        values: list[Any] = found.tolist()
        return values
    raise UserError(f"{path}: must hold a list or a one-dimensional tensor; {_ADVICE}")
