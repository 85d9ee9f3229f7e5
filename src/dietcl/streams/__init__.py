"""From a source of images to time steps of opaque row numbers."""
