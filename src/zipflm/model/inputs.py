"""Input layers: map word ids to vectors of the decoder's width.

To avoid device synchronization, `AdaptiveEmbedding` looks up every word in every band, with a mask.

Shapes: B texts, T tokens, D model width, V words, C bytes of a word, E width of a byte vector, N
flattened words, U unique words of a batch, F convolution features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.types import Device

from zipflm.config.layers import NUM_BYTES
from zipflm.kernels import checked_ids, statistics_dtype
from zipflm.model import initialization
from zipflm.model.bands import Bands
from zipflm.model.initialization import Fill, InitializedModule

if TYPE_CHECKING:
    from zipflm.model.sharded_tables import TableShards

PADDING, END, UNKNOWN = 1, 2, 3
"""Ids of `<pad>`, `</s>` and `<unk>` in every vocabulary of this package."""


class TableLayer(InitializedModule):
    """Base class of input and output layers with word tables."""

    table_shards: TableShards | None = None
    """Set if the rows of the tables are split over processes (`model.sharded_tables`)."""


class FixedEmbedding(TableLayer):
    """One table, followed by a bias-free projection if its width is not the decoder's."""

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        out_dim: int,
        padding_idx: int | None = None,
        *,
        sparse: bool = False,
    ):
        """With `sparse`, the gradient of the table is a sparse tensor, as in `nn.Embedding`."""
        super().__init__()
        self.vocab_size: int = vocab_size
        self.padding_idx: int | None = padding_idx
        self.sparse: bool = sparse
        self.table: nn.Parameter = nn.Parameter(torch.empty(vocab_size, dim))
        self.projection: nn.Linear | None = (
            nn.Linear(dim, out_dim, bias=False) if dim != out_dim else None
        )
        self.reset_parameters()

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        yield "table", initialization.table(self.padding_idx)
        if self.projection is not None:
            yield "projection.weight", initialization.xavier_uniform()

    def forward(self, words: Tensor) -> Tensor:
        words = checked_ids("words", words, self.vocab_size)
        if self.table_shards is not None:
            hidden = self.table_shards.lookup(words, [self.table], [0], self.padding_idx)
        elif self.sparse and torch.is_grad_enabled():
            hidden = _lookup_sparse(self.table, words, None, self.padding_idx)
        else:
            hidden = F.embedding(words, self.table, self.padding_idx)
        return hidden if self.projection is None else self.projection(hidden)


class AdaptiveEmbedding(TableLayer):
    """Wide vectors for frequent words, narrow ones for rare words, projected to one width
    (section 3 of the paper).

    >>> bands = Bands(vocab_size=1000, cutoffs=(100, 400), dim=64, factor=4)
    >>> AdaptiveEmbedding(bands)(torch.tensor([[3, 150, 999]])).shape
    torch.Size([1, 3, 64])
    """

    def __init__(
        self,
        bands: Bands,
        out_dim: int | None = None,
        *,
        padding_idx: int | None = None,
        sparse: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        """`out_dim` is the width of the result (default: `bands.dim`). `padding_idx` must be an id
        of the head; its vector starts at zero and gets no gradient, as in `nn.Embedding`. With
        `sparse`, the tables, but not the projections, have sparse gradients for
        `torch.optim.SparseAdam`; a band without words in the batch then has an explicit gradient
        of zero for its first row."""
        super().__init__()
        self.bands: Bands = bands
        self.padding_idx: int | None = padding_idx
        self.sparse: bool = sparse
        self.out_dim: int = bands.dim if out_dim is None else out_dim
        if padding_idx is not None and not 0 <= padding_idx < bands.sizes[0]:
            raise ValueError(
                f"padding_idx={padding_idx}: must be an id of the head, 0 to {bands.sizes[0] - 1}"
            )
        self.embeddings: nn.ParameterList = nn.ParameterList(
            nn.Parameter(torch.empty(size, width, device=device, dtype=dtype))
            for size, width in zip(bands.sizes, bands.widths, strict=True)
        )
        self.projections: nn.ParameterList = nn.ParameterList(
            nn.Parameter(torch.empty(self.out_dim, width, device=device, dtype=dtype))
            for width in bands.widths
        )
        self.reset_parameters()

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        for band in range(self.bands.num_bands):
            padding_idx = self.padding_idx if band == 0 else None
            yield f"embeddings.{band}", initialization.table(padding_idx)
            yield f"projections.{band}", initialization.xavier_uniform()

    def band_weights(self, band: int) -> tuple[Tensor, Tensor]:
        """Return a band's embedding [size, width] and projection [out_dim, width], for tying."""
        return self.embeddings[band], self.projections[band]

    def extra_repr(self) -> str:
        return f"{self.bands}, out_dim={self.out_dim}" + (", sparse=True" if self.sparse else "")

    def forward(self, words: Tensor) -> Tensor:
        words = checked_ids("words", words, self.bands.vocab_size)
        # Each word's vector fills its band's slice of one long row, with zeros elsewhere, so that
        # all bands need only one product with the concatenated projections.
        if self.table_shards is not None:
            rows = self.table_shards.lookup(
                words, list(self.embeddings), self.bands.edges, self.padding_idx
            )
        else:
            rows = self._lookup(words)
        hidden: Tensor = F.linear(rows, torch.cat(list(self.projections), 1))
        return hidden

    def _lookup(self, words: Tensor) -> Tensor:
        slices = []
        for band, table in enumerate(self.embeddings):
            index = words - self.bands.edges[band]
            in_band = (index >= 0) & (index < len(table))
            padding_idx = self.padding_idx if band == 0 else None
            if self.sparse and torch.is_grad_enabled():
                slices.append(_lookup_sparse(table, index, in_band, padding_idx))
                continue
            rows = F.embedding(index.where(in_band, 0), table, padding_idx)
            slices.append(rows.masked_fill(~in_band.unsqueeze(-1), 0.0))
        return torch.cat(slices, dim=-1)


def _lookup_sparse(
    table: Tensor, indices: Tensor, is_inside: Tensor | None, padding_idx: int | None
) -> Tensor:
    """Look up rows with a sparse gradient. Rows are 0 where `is_inside` is False.

    The gradient has one entry per index, because selecting a subset would synchronize with the
    device. Indices outside the table, and padding, add 0 to the row of another word of the batch
    (row 0 if there is none), so that no other rows are touched.
    """
    has_grad = torch.ones_like(indices, dtype=torch.bool) if is_inside is None else is_inside
    is_padding = None if padding_idx is None else indices == padding_idx
    if is_padding is not None:
        has_grad = has_grad & ~is_padding
    dummy_row = indices.where(has_grad, 0).amax() if indices.numel() else 0
    rows = F.embedding(indices.where(has_grad, dummy_row), table, sparse=True)
    rows = rows.masked_fill(~has_grad.unsqueeze(-1), 0.0)
    if is_padding is not None:
        # Imported weights may have a non-zero padding row.
        rows = torch.where(is_padding.unsqueeze(-1), table[padding_idx].detach(), rows)
    return rows


def sparse_tables(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that have sparse gradients."""
    tables: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, FixedEmbedding) and module.sparse:
            tables.append(module.table)
        elif isinstance(module, AdaptiveEmbedding) and module.sparse:
            tables.extend(module.embeddings)
    return tables


class UniqueTokens(NamedTuple):
    """Tokens as indices into a list of the unique words of a batch."""

    ids_U: Tensor
    """Padded at the end by repeating the last id."""
    indices_BT: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.indices_BT.shape


class CharacterEmbedding(InitializedModule):
    """Convolutions over the bytes of a word, max-pooled, then highway layers and a projection.

    As in the published code, every word is padded to the same number of bytes, max-pooling includes
    windows of padding, `</s>` and `<unk>` have learned vectors, and the vector of `<pad>` is zero.
    """

    def __init__(
        self,
        spellings_VC: Tensor,
        out_dim: int,
        *,
        char_dim: int,
        filters: tuple[tuple[int, int], ...],
        highway_layers: int,
        num_symbols: int = NUM_BYTES,
    ):
        """`spellings_VC` holds the bytes of every word, each plus 1, with markers if any, and
        padded with 0. All values are below `num_symbols`."""
        super().__init__()
        # Not saved: it can be rebuilt from the vocabulary, which every checkpoint contains.
        self.spellings_VC: Tensor
        self.register_buffer("spellings_VC", spellings_VC, persistent=False)
        self.bytes: nn.Parameter = nn.Parameter(torch.empty(num_symbols, char_dim))
        self.convolutions: nn.ModuleList = nn.ModuleList(
            _PooledConvolution(char_dim, n, size) for size, n in filters
        )
        features = sum(n for _, n in filters)
        self.highway: nn.ModuleList = nn.ModuleList(
            nn.Linear(features, 2 * features) for _ in range(highway_layers)
        )
        self.projection: nn.Linear = nn.Linear(features, out_dim)
        self.symbols: nn.Parameter = nn.Parameter(torch.empty(2, out_dim))
        self.reset_parameters()

    def reserve(self, num_words: int) -> int:
        """Add rows to `spellings_VC` for new words, to be filled later. Return the first new id."""
        first, width = self.spellings_VC.shape
        spellings_VC = self.spellings_VC.new_zeros(first + num_words, width)
        spellings_VC[:first] = self.spellings_VC
        self.spellings_VC = spellings_VC
        return first

    def initial_values(self) -> Iterator[tuple[str, Fill]]:
        yield "bytes", initialization.xavier_normal(zero_row=0)
        yield "symbols", initialization.xavier_normal()
        for index, convolution in enumerate(self.convolutions):
            assert isinstance(convolution, _PooledConvolution)
            fill = initialization.torch_linear(convolution.weight[0].numel())
            yield f"convolutions.{index}.weight", fill
            yield f"convolutions.{index}.bias", fill
        for index in range(len(self.highway)):
            yield f"highway.{index}.weight", initialization.xavier_normal()
            # Gates start at 1, so that the layers pass most of their input through.
            yield f"highway.{index}.bias", initialization.constant(0.0, 1.0)
        yield "projection.weight", initialization.xavier_uniform()
        yield "projection.bias", initialization.zeros

    def forward(self, words: Tensor | UniqueTokens) -> Tensor:
        if isinstance(words, UniqueTokens):
            hidden_UD = self._embed(words.ids_U)
            # In float32 or more, because the backward pass sums over all positions of a word.
            exact_UD = hidden_UD.to(statistics_dtype(hidden_UD.dtype))
            return F.embedding(words.indices_BT, exact_UD).to(hidden_UD.dtype)
        return self._embed(words.reshape(-1)).view(*words.shape, self.projection.out_features)

    def _embed(self, words_N: Tensor) -> Tensor:
        words_N = checked_ids("words", words_N, len(self.spellings_VC))
        hidden_ND = self._embed_bytes(self.spellings_VC[words_N].long())
        for index, word in enumerate((END, UNKNOWN)):
            is_symbol_N1 = (words_N == word).unsqueeze(1)
            hidden_ND = torch.where(
                is_symbol_N1, self.symbols[index].to(hidden_ND.dtype), hidden_ND
            )
        return hidden_ND.masked_fill((words_N == PADDING).unsqueeze(1), 0.0)

    def _embed_bytes(self, bytes_NC: Tensor) -> Tensor:
        chars_NEC = F.embedding(bytes_NC, self.bytes, padding_idx=0).transpose(1, 2)
        pooled = [convolution(chars_NEC) for convolution in self.convolutions]
        hidden_NF = torch.cat(pooled, dim=-1).relu()
        for layer in self.highway:
            transform, gate = layer(hidden_NF).chunk(2, dim=-1)
            gate = gate.sigmoid()
            hidden_NF = gate * hidden_NF + (1 - gate) * transform.relu()
        hidden_ND: Tensor = self.projection(hidden_NF)
        return hidden_ND


class _PooledConvolution(nn.Module):
    """A convolution over the bytes of a word, max-pooled.

    `conv2d` keeps the channels-last layout of the looked-up vectors. `conv1d` would transpose them
    back and forth, making the embedding 2.6 times slower on a GPU and 1.5 times slower on a CPU.
    """

    def __init__(self, char_dim: int, num_features: int, num_bytes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_features, char_dim, num_bytes))
        self.bias = nn.Parameter(torch.empty(num_features))

    def forward(self, chars_NEC: Tensor) -> Tensor:
        features = F.conv2d(chars_NEC.unsqueeze(2), self.weight.unsqueeze(2), self.bias)
        return features.amax(dim=(-2, -1))
