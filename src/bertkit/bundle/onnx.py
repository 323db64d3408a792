"""Writes a network as an ONNX graph (bundle/exported.py runs it), in fp32, or with weights and activations in int8.

T tokens, B sequences, M wanted positions, n sequences of a grid, L its length, H heads, K head width, D width.
"""

import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from bertkit.bundle.exported import GRAPH
from bertkit.bundle.int8 import quantize
from bertkit.data.inputs import TaskBatch
from bertkit.errors import import_extra
from bertkit.model.attention import Attention
from bertkit.model.batch import Batch, Bucket
from bertkit.model.config import Config
from bertkit.model.device import twin
from bertkit.model.positions import Rotary
from bertkit.tasks.network import FeatureNetwork, SimilarityNetwork, TaskNetwork

OPSET = 17  # the first with LayerNormalization
HEADS = {"logits": "judged", "masked": "masked_logits", "next": "next_logits"}  # output → the network's method


class Graph(nn.Module):
    """A network as a function of plain tensors, from which it computes the rest of a batch itself."""

    def __init__(self, network: Any):
        super().__init__()
        network = twin(network)
        if getattr(network, "lstm", None) is not None:
            network.in_order = partial(_in_order, network.lstm)
        self.turns = nn.ParameterList(_turns(network.encoder.config))
        for attention in (block.attention for block in network.encoder.blocks):
            if type(attention) is Attention and not (attention.window or attention.causal):
                attention.mixed = partial(_mixed, attention, self.turns)  # type: ignore[method-assign]
        self.network, pools = network, network.encoder.pooler is not None
        there: dict[str, Any] = {"logits": isinstance(network, TaskNetwork) and not isinstance(network, SimilarityNetwork)}
        there |= {"masked": getattr(network, "masked", None), "next": pools and getattr(network, "next", None)}
        self.heads = [name for name, head in there.items() if head]

    def forward(self, ids: Tensor, segments: Tensor, boundaries: Tensor, places: Tensor, told: Tensor) -> tuple[Tensor, ...]:
        x, read = self._read(_batch(ids, segments, boundaries), places)
        read = read.index_select(0, told)
        return x, *(getattr(self.network, HEADS[name])(read) for name in self.heads)

    def _read(self, batch: Batch, places: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the last layer's vectors at the places [M, D], and the heads' input: the same, features, LSTM or means."""
        network = self.network
        if isinstance(network, FeatureNetwork):
            states = network.encoder.hidden_states(batch)
            chosen = torch.stack([states[layer] for layer in network.layers], 1)
            data = TaskBatch(batch, places, places, places, known=0, tokens=0, features=chosen)
            return states[-1].index_select(0, places), network.read(data, places)
        if getattr(network, "lstm", None) is not None:
            x = network.encoder(batch)
            return x.index_select(0, places), network.in_order(x, batch).index_select(0, places)
        if "logits" in self.heads and network.pooling == "mean":
            x = network.encoder(batch)
            return x.index_select(0, places), _mean(x, batch, places)
        x = network.encoder(batch, places)
        return x, x


def _batch(ids: Tensor, segments: Tensor, boundaries: Tensor) -> Batch:
    """Returns a batch with one grid for all sequences, as packing already groups similar lengths."""
    begins, ends = boundaries[:-1], boundaries[1:]
    sizes, at = ends - begins, torch.arange(ids.shape[0])
    owners = (at[:, None] >= ends).sum(1)  # [T]
    longest: Any = sizes.max()
    positions, column = at - begins[owners], torch.arange(longest)
    tokens = begins[:, None] + torch.minimum(column, sizes[:, None] - 1)  # [n, L]
    inside = (column < sizes[:, None])[:, None, None]
    order = owners * longest + positions
    return Batch(ids, segments, positions, boundaries, 1 << 30, (Bucket(tokens, inside),), order)


def _mean(x: Tensor, batch: Batch, places: Tensor) -> Tensor:
    """Returns the mean vector of the sequence that each place belongs to [M, D]; `pool` itself cannot be exported."""
    bucket, owners = batch.buckets[0], (places[:, None] >= batch.boundaries[1:]).sum(1)
    there = bucket.there[..., None]
    grid = x.index_select(0, bucket.tokens.flatten()).view(*bucket.tokens.shape, -1)  # [n, L, D]
    return ((grid * there).sum(1) / there.sum(1)).index_select(0, owners)


def _mixed(attention: Attention, turns: Iterable[Tensor], x: Tensor, batch: Batch, places: Tensor | None) -> Tensor:
    """Replaces `Attention.mixed` [T, H, K] by a single operator on the grid."""
    bucket = batch.buckets[0]
    grid = attention.qkv(x).index_select(0, bucket.tokens.flatten()).view(*bucket.tokens.shape, -1)  # [n, L, 3 D]
    mixed = _Attend.apply(grid, bucket.there.sum(1).int(), attention.heads, attention.output.in_features, *turns)
    return mixed.flatten(0, 1).index_select(0, batch.order).unflatten(1, (attention.heads, -1))


class _Attend(torch.autograd.Function):
    """ONNX Runtime's own attention operator, which takes the sequences' lengths [n], and its rotary position embedding."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, lengths: Tensor, heads: int, width: int, *turns: Tensor) -> Tensor:
        return qkv[..., :width].clone()  # only its shape matters: [n, L, D]

    @staticmethod
    def symbolic(g: Any, qkv: Any, lengths: Any, heads: int, width: int, *turns: Any) -> Any:
        q, k, v = g.op("Split", qkv, axis_i=-1, outputs=3)
        if turns:
            first = g.op("Constant", value_t=torch.tensor([0]))
            q, k = (g.op("com.microsoft::RotaryEmbedding", x, first, *turns) for x in (q, k))
        bias = g.op("prim::Constant")
        bias.setType(torch._C.OptionalType.ofTensor())
        mixed = g.op("com.microsoft::MultiHeadAttention", q, k, v, bias, lengths, num_heads_i=heads)
        mixed.setType(qkv.type().with_sizes([None, None, width]))
        return mixed


def _turns(config: Config) -> Iterable[Tensor]:
    """Returns cosine and sine of each position [P, K / 2] for global rotary attention; nothing for other models."""
    if config.place != "rotary":
        return ()
    at = torch.arange(config.positions)
    return Rotary(config)(Batch(at, at, at, at, 0, (), at))[0].unbind()


def write_graph(network: Any, folder: Path, *, int8: bool = False) -> None:
    """Writes model.onnx, and its weights as model.onnx.data, into an empty folder."""
    onnx = import_extra("onnx", "onnx", "bertkit export")
    graph, file = Graph(network).eval(), folder / GRAPH
    sizes = torch.tensor([5, 9, 7])
    boundaries = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    ids = torch.arange(int(sizes.sum())) % network.encoder.config.vocabulary
    example = {"ids": ids, "segments": ids % 2, "boundaries": boundaries, "places": boundaries[:3], "told": sizes[:2] % 3}
    outputs = ["vectors", *graph.heads]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # that tracing is deprecated, and that it fixes Python values
        torch.onnx.export(
            graph,
            tuple(example.values()),
            str(file),
            input_names=list(example),
            output_names=outputs,
            dynamic_axes={name: {0: name} for name in (*example, *outputs)},
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(file)
    for old in folder.iterdir():  # above 2 GB the exporter writes weights to files of their own
        old.unlink()
    if int8:
        quantize(model)
    onnx.save(model, file, save_as_external_data=True, location=f"{GRAPH}.data", size_threshold=1024)


def _in_order(lstm: nn.LSTM, x: Tensor, batch: Batch) -> Tensor:
    """Runs the LSTM on a padded grid, as the network's loop over the sequences cannot be traced."""
    bucket = batch.buckets[0]
    packed = rnn.pack_padded_sequence(x[bucket.tokens], bucket.there.sum(1), batch_first=True, enforce_sorted=False)
    padded, _ = rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    return padded.flatten(0, 1).index_select(0, batch.order)
