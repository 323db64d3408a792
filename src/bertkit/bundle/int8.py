"""An ONNX graph's large linear layers in int8, with a scale for each output of the weights and for each input token.

The usual single scale for all tokens of a batch would make an answer depend on the rest of its batch, and a token with large
values would cost the others precision. T tokens, N inputs of a linear layer, C outputs.
"""

from typing import Any

import numpy as np

from bertkit.errors import import_extra

STEPS = 63  # of a weight on each side of zero: with 127, sums of two products overflow on CPUs without VNNI
MIDDLE = 128  # the uint8 zero point of activations, which have 127 steps on each side
MICROSOFT = "com.microsoft"  # the domain of ONNX Runtime's integer operators
NARROW = 32  # a layer with fewer outputs stays in fp32
CONSTANTS: dict[str, Any] = {"one": np.float32(1), "step": np.float32(1 / 127), "least": np.float32(1e-12)}
CONSTANTS |= {"middle": np.uint8(MIDDLE), "columns": np.array([1])}


def quantize(model: Any) -> None:
    """Quantizes the graph in place."""
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
    """Returns the weights [N, C] of a large linear layer; None for any other node."""
    if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in weights:
        return None
    values = onnx.numpy_helper.to_array(weights[node.input[1]])
    values = values.T if any(one.name == "transB" and one.i for one in node.attribute) else values
    return values if values.ndim == 2 and values.shape[1] >= NARROW else None


def _weights(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    scales = np.abs(values).max(0).clip(1e-12) / STEPS  # [C]
    return {f"{name}.int8": np.round(values / scales).astype(np.int8), f"{name}.scales": scales.astype(np.float32)}


def _rows(helper: Any, x: str) -> list[Any]:
    """Returns nodes that quantize x [T, N], with each row's scale as [T] and as [T, 1]."""
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
    """Returns nodes for the integer matrix multiplication, scaled back [T, C], and the bias."""
    node, (x, name, *bias), (y,) = helper.make_node, old.input, old.output
    whole = [f"{x}.int8", f"{name}.int8", "one", f"{name}.scales", "middle"]
    product = node("MatMulIntegerToFloat", whole, [f"{y}.whole"], domain=MICROSOFT)
    scaled = node("Mul", [f"{y}.whole", f"{x}.scales"], [f"{y}.scaled" if bias else y])
    return [product, scaled, node("Add", [f"{y}.scaled", *bias], [y])] if bias else [product, scaled]
