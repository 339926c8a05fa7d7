"""From a model to its training graph: reverse mode over the nodes of an ONNX graph."""
