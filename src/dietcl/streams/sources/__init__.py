"""Built-in sources of images: each renders or unpacks itself into a cache folder, beside a manifest."""

import os
from pathlib import Path

from dietcl.streams.sources.digits import Digits
from dietcl.streams.sources.glyphs import Glyphs, GlyphsDrift, GlyphsUpstream

Source = Glyphs | GlyphsDrift | GlyphsUpstream | Digits
SOURCES: dict[str, type[Source]] = {source.name: source for source in (Glyphs, GlyphsDrift, GlyphsUpstream, Digits)}


def default_cache() -> Path:
    """Return the folder for what can be made again: $DIETCL_CACHE, or ~/.cache/dietcl."""
    return Path(os.environ.get("DIETCL_CACHE") or Path.home() / ".cache" / "dietcl").expanduser()
