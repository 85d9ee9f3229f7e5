"""Where images come from: built-in sources by name, and readers of what users bring."""

from dietcl.streams.sources.builtin.digits import Digits
from dietcl.streams.sources.builtin.glyphs.glyphs import Glyphs, GlyphsDrift, GlyphsUpstream

Source = Glyphs | GlyphsDrift | GlyphsUpstream | Digits
SOURCES: dict[str, type[Source]] = {source.name: source for source in (Glyphs, GlyphsDrift, GlyphsUpstream, Digits)}
