"""Numbers for strings, many at a time: what finds one string twice among tens of millions."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_PRIME = np.uint64(0x9E3779B97F4A7C15)


def fingerprints(strings: pa.Array) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each string of an array without nulls; equal strings have equal ones."""
    strings = strings.cast(pa.large_string())
    if not len(strings):
        return np.zeros(0, np.uint64)
    _, bounds, text = strings.buffers()
    edges = np.frombuffer(bounds, np.int64, len(strings) + 1, strings.offset * 8)
    start, size = edges[:-1] - edges[0], np.diff(edges)
    content = np.zeros(int(edges[-1] - edges[0]) + 8, np.uint8)  # the last string's last word ends past its end
    if text is not None:
        content[:-8] = np.frombuffer(text, np.uint8)[edges[0] : edges[-1]]
    words = np.ndarray(len(content) - 7, np.uint64, content, strides=(1,))  # the eight bytes from each byte on
    found = _mixed(size.astype(np.uint64))
    rows = np.flatnonzero(size > 0)
    done = 0
    while len(rows):
        word = words[start[rows] + done]
        left = size[rows] - done
        short = left < 8
        word[short] &= (np.uint64(1) << (8 * left[short]).astype(np.uint64)) - np.uint64(1)
        found[rows] = _mixed(found[rows] ^ word)
        done += 8
        rows = rows[left > 8]
    return found


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(32))) * _PRIME
    return values ^ (values >> np.uint64(29))
