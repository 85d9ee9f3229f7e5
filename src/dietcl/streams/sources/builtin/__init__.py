"""Built-in sources of images: each renders or unpacks itself into a cache folder, beside a manifest."""
