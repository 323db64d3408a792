"""An ONNX graph's large maps in 8 bits: a scale for each output of the weights, and one for each token they are applied to.

The usual way, one scale for all tokens of a batch, makes an answer depend on what else is in its batch; this does not, and
one token with large values costs the others no precision. T tokens, N inputs of a map, C its outputs.
"""

from typing import Any

import numpy as np

from bertkit.errors import import_extra

STEPS = 63  # of a weight to each side: with 127, sums of two products overflow where a processor lacks VNNI
MIDDLE = 128  # the 8-bit number that stands for 0 in activations, which have 127 steps to each side
MICROSOFT = "com.microsoft"  # whose operators multiply whole numbers
NARROW = 32  # outputs of a map below which it stays as it is
CONSTANTS: dict[str, Any] = {"one": np.float32(1), "step": np.float32(1 / 127), "least": np.float32(1e-12)}
CONSTANTS |= {"middle": np.uint8(MIDDLE), "columns": np.array([1])}


def quantize(model: Any) -> None:
    """Changes the graph in place."""
    onnx = import_extra("onnx", "onnx", "bertkit export")
    graph, made, read = model.graph, dict(CONSTANTS), set[str]()
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes = list[Any]()
    for node in graph.node:
        values = _matrix(onnx, node, weights)
        if values is None:
            nodes.append(node)
            continue
        x, name = node.input[:2]
        if x not in read:
            nodes += _rows(onnx.helper, x)
            read.add(x)
        if f"{name}.int8" not in made:
            made |= _weights(name, values)
        nodes += _product(onnx.helper, node)
    tensors = weights | {name: onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in made.items()}
    used = {name for node in nodes for name in node.input}
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for name, tensor in tensors.items() if name in used)
    if all(known.domain != MICROSOFT for known in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))


def _matrix(onnx: Any, node: Any, weights: dict[str, Any]) -> np.ndarray | None:
    """The weights [N, C] of a large map; None for any other node."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in weights:
        return None
    values = onnx.numpy_helper.to_array(weights[node.input[1]])
    values = values.T if any(one.name == "transB" and one.i for one in node.attribute) else values
    return values if values.ndim == 2 and values.shape[1] >= NARROW else None


def _weights(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    scales = np.abs(values).max(0).clip(1e-12) / STEPS  # [C]
    return {f"{name}.int8": np.round(values / scales).astype(np.int8), f"{name}.scales": scales.astype(np.float32)}


def _rows(helper: Any, x: str) -> list[Any]:
    """x [T, N] as whole numbers, and the scale of each row [T] and [T, 1]."""
    node, middle = helper.make_node, helper.make_tensor("middle", 2, [1], [MIDDLE])
    return [
        node("Abs", [x], [f"{x}.sizes"]),
        node("ReduceMax", [f"{x}.sizes"], [f"{x}.largest"], axes=[1], keepdims=0),
        node("Mul", [f"{x}.largest", "step"], [f"{x}.found"]),
        node("Max", [f"{x}.found", "least"], [f"{x}.scale"]),
        node("Shape", [f"{x}.scale"], [f"{x}.count"]),
        node("ConstantOfShape", [f"{x}.count"], [f"{x}.middles"], value=middle),
        node("QuantizeLinear", [x, f"{x}.scale", f"{x}.middles"], [f"{x}.int8"], axis=0),
        node("Unsqueeze", [f"{x}.scale", "columns"], [f"{x}.scales"]),
    ]


def _product(helper: Any, old: Any) -> list[Any]:
    """The map of whole numbers, scaled back [T, C]; and its bias."""
    node, (x, name, *bias), (y,) = helper.make_node, old.input, old.output
    whole = [f"{x}.int8", f"{name}.int8", "one", f"{name}.scales", "middle"]
    product = node("MatMulIntegerToFloat", whole, [f"{y}.whole"], domain=MICROSOFT)
    scaled = node("Mul", [f"{y}.whole", f"{x}.scales"], [f"{y}.scaled" if bias else y])
    return [product, scaled, node("Add", [f"{y}.scaled", *bias], [y])] if bias else [product, scaled]
