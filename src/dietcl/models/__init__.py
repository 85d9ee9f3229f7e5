"""The network: a timm encoder, a masked-autoencoder decoder and a head that grows with the classes."""
