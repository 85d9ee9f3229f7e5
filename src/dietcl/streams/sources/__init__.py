"""Built-in sources of images: each renders or unpacks itself into a cache folder, beside a manifest."""

from dietcl.streams.sources.builtin.digits import Digits
from dietcl.streams.sources.builtin.glyphs.glyphs import Glyphs, GlyphsDrift, GlyphsUpstream

Source = Glyphs | GlyphsDrift | GlyphsUpstream | Digits
SOURCES: dict[str, type[Source]] = {source.name: source for source in (Glyphs, GlyphsDrift, GlyphsUpstream, Digits)}
