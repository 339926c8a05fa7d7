"""Train an ONNX model on handwritten digits: its nodes one by one, forwards and backwards, on the kernels of pullback.ort.

Run: python examples/digits_onnx.py --save digits.onnx   (needs pip install 'pullback[examples]')
Without --model a small network is made: Conv, Relu, MaxPool, Conv, Relu, AveragePool, Flatten, Gemm.
"""

from __future__ import annotations

import argparse

import digits_data
import numpy as np

from pullback import ort

try:
    import onnx
    from onnx import helper, numpy_helper
except ImportError:
    raise SystemExit("this example needs onnx: pip install 'pullback[examples]'") from None

Tensors = dict[str, np.ndarray]
RATE, MOMENTUM, BATCH = 0.03, 0.9, 32


def small_network(seed: int) -> onnx.ModelProto:
    """Two convolutions, each with a pooling of 2 x 2 pixels, and a dense layer; the batch is symbolic."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in {"W1": (16, 1, 3, 3), "W2": (32, 16, 3, 3), "W3": (digits_data.CLASSES, 32 * 2 * 2)}.items():
        weights[name] = (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)
        weights[name.replace("W", "B")] = np.zeros(shape[0], np.float32)
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["images", "W1", "B1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], **pool),
        helper.make_node("Conv", ["p1", "W2", "B2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("AveragePool", ["r2"], ["p2"], **pool),
        helper.make_node("Flatten", ["p2"], ["f"]),
        helper.make_node("Gemm", ["f", "W3", "B3"], ["scores"], transB=1),
    ]
    sizes = {"images": ["N", 1, 8, 8], "scores": ["N", digits_data.CLASSES]}
    images, scores = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in sizes.items())
    graph = helper.make_graph(nodes, "digits", [images], [scores], [numpy_helper.from_array(w, n) for n, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def attributes(node: onnx.NodeProto) -> dict:
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def forward(graph: onnx.GraphProto, weights: Tensors, images: np.ndarray) -> Tensors:
    """Every tensor of the graph by its name, and of each MaxPool where its maxima were."""
    tensors = {**weights, graph.input[0].name: images}
    for node in graph.node:
        attrs, (x, *rest) = attributes(node), (tensors[name] for name in node.input)
        match node.op_type:
            case "Conv" | "AveragePool":
                y = ort.run_kernel(node.op_type, dict(zip("XWB", (x, *rest), strict=False)), attrs)
            case "MaxPool":
                y, tensors[f"{node.output[0]} indices"] = ort.run_kernel("MaxPool", {"X": x}, attrs)
            case "Relu":
                y = np.maximum(x, 0)
            case "Flatten" if attrs.get("axis", 1) == 1:
                y = x.reshape(len(x), -1)
            case "Gemm" if attrs == {"transB": 1} and len(rest) == 2:
                y = x @ rest[0].T + rest[1]
            case _:
                raise SystemExit(f"this example has no {node.op_type} with {attrs}; forward and backward are the places for it")
        tensors[node.output[0]] = y
    return tensors


def backward(graph: onnx.GraphProto, tensors: Tensors, scores_gradient: np.ndarray) -> Tensors:
    """The gradient of every weight. The model is a chain: each tensor is read by one node."""
    gradients = {graph.output[0].name: scores_gradient}
    for node in reversed(graph.node):
        dy, x, attrs = gradients.pop(node.output[0]), tensors[node.input[0]], attributes(node)
        rest = []  # gradients of the inputs after the first
        match node.op_type:
            case "Conv":
                dx, *rest = ort.run_kernel("ConvGrad", {"dY": dy, "X": x, "W": tensors[node.input[1]]}, attrs)
            case "MaxPool":
                indices = tensors[f"{node.output[0]} indices"]
                dx = ort.run_kernel("MaxPoolGrad", {"dY": dy, "Indices": indices}, attrs, output_shape=x.shape)
            case "AveragePool":
                dx = ort.run_kernel("AveragePoolGrad", {"dY": dy}, attrs, output_shape=x.shape)
            case "Relu":
                dx = dy * (x > 0)
            case "Flatten":
                dx = dy.reshape(x.shape)
            case "Gemm":
                dx, rest = dy @ tensors[node.input[1]], [dy.T @ x, dy.sum(0)]
        gradients |= dict(zip(node.input, (dx, *rest), strict=False))
    return gradients


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean over the batch, and its gradient in the scores."""
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    right = np.eye(scores.shape[1], dtype=scores.dtype)[labels]
    return float(-np.log((shares * right).sum(1)).mean()), (shares - right) / len(labels)


def train(model: onnx.ModelProto, epochs: int, seed: int) -> float:
    """Gradient descent with momentum on the weights of the model, which it gets back; the share of unseen digits read right."""
    graph, digits, right = model.graph, digits_data.load(seed), 0.0
    weights = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in graph.initializer}
    velocity = {name: np.zeros_like(weight) for name, weight in weights.items()}
    train_x, test_x = (np.ascontiguousarray(x.transpose(0, 3, 1, 2)) for x in (digits.train_x, digits.test_x))  # N, C, H, W
    for epoch in range(1, epochs + 1):
        losses = []
        for x, labels in digits_data.batches(train_x, digits.train_y, BATCH, seed + epoch):
            tensors = forward(graph, weights, x)
            loss, gradient = cross_entropy(tensors[graph.output[0].name], labels)
            gradients = backward(graph, tensors, gradient)
            for name, weight in weights.items():
                velocity[name] = MOMENTUM * velocity[name] - RATE * gradients[name]
                weight += velocity[name]
            losses.append(loss)
        right = float((forward(graph, weights, test_x)[graph.output[0].name].argmax(1) == digits.test_y).mean())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, {right:.1%} of unseen digits right", flush=True)
    for tensor in graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="an ONNX file to train further; images (N, 1, 8, 8) in, scores (N, 10) out")
    parser.add_argument("--save", default="digits.onnx", help="where the trained model is written (default digits.onnx)")
    parser.add_argument("--epochs", type=int, default=10, help="times through the training digits (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, the weights and the order (default 0)")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    model = onnx.load(options.model) if options.model else small_network(options.seed)
    print(f"final accuracy {train(model, options.epochs, options.seed):.1%}")
    onnx.checker.check_model(model)
    onnx.save(model, options.save)
    print(f"wrote {options.save}")


if __name__ == "__main__":
    main()
