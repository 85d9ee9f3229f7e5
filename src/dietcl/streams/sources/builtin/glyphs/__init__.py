"""Characters drawn from fonts: a stream that needs no download."""
