"""The paper's model: input layers, decoders, output layers, caches and sampling."""
