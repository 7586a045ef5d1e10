"""The paper's model: input layers, decoder, output layers, and the one place that ties them."""
