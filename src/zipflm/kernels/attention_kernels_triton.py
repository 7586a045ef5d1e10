"""The kernels of causal self-attention with dropout, from and to the packed projection.

Scores never leave the registers; the backward pass computes them again from the log-sum-exp of each
row, once for the queries' gradients and once for those of keys and values. No program adds to what
another one wrote, so equal inputs give equal bits.

Shapes: B sequences, H heads, T positions, K head width, D = H * K.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zipflm.kernels.attention_bits_triton import (
    COLUMNS_APART,
    LOWER,
    UPPER,
    column_hash,
    is_kept,
    limit_of,
    row_keys_of,
)

# --- Tiles ----------------------------------------------------------------------------------------


@triton.jit
def _place(program, length, num_heads, ROWS: tl.constexpr):
    """(block, sequence, head) of a program; the blocks of a head follow one another, last first."""
    num_blocks = tl.cdiv(length, ROWS)
    head_of_all = program // num_blocks
    return num_blocks - 1 - program % num_blocks, head_of_all // num_heads, head_of_all % num_heads


@triton.jit
def _mask(rows, length, HEAD: tl.constexpr, WIDTH: tl.constexpr):
    return (rows < length)[:, None] & (tl.arange(0, WIDTH) < HEAD)[None, :]


@triton.jit
def _load(
    pointer, rows, stride, length, HEAD: tl.constexpr, WIDTH: tl.constexpr, ALL: tl.constexpr
):
    """One head of some rows [rows, WIDTH], 0 behind the end; `ALL` rows exist, if it says so."""
    lanes = tl.arange(0, WIDTH)
    places = pointer + rows[:, None] * stride + lanes[None, :]
    if not ALL:
        return tl.load(places, mask=_mask(rows, length, HEAD, WIDTH), other=0.0)
    elif HEAD < WIDTH:
        return tl.load(places, mask=(lanes < HEAD)[None, :], other=0.0)
    else:
        return tl.load(places)


@triton.jit
def _store(pointer, rows, stride, length, values, HEAD: tl.constexpr, WIDTH: tl.constexpr):
    places = pointer + rows[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    values = values.to(pointer.dtype.element_ty)
    tl.store(places, values, mask=_mask(rows, length, HEAD, WIDTH))


# --- Forward --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["threshold", "length"])
def forward_kernel(
    qkv_ptr,  # [B, T, 3 D], columns adjacent
    out_ptr,  # [B, T, D]
    lse_ptr,  # [B, H, T] float32, to base 2
    seed_ptr,  # [1] int64
    sequence_stride,
    row_stride,
    num_heads,
    length,
    threshold,
    steepness,  # scores times this are exponents of 2
    growth,  # of the weights that are kept
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Output and log-sum-exp of a block of rows."""
    block, sequence, head = _place(tl.program_id(0), length, num_heads, ROWS)
    dim = num_heads * HEAD
    query_ptr = qkv_ptr + sequence.to(tl.int64) * sequence_stride + head * HEAD
    key_ptr, value_ptr = query_ptr + dim, query_ptr + 2 * dim
    rows = block * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, COLUMNS_APART)
    query = _load(query_ptr, rows, row_stride, length, HEAD, WIDTH, False)
    rows_of_all = (sequence * num_heads + head) * length + rows
    row_keys = row_keys_of(seed_ptr, rows_of_all)[:, None]
    limit = limit_of(threshold)
    # Online: `top` is the largest exponent so far, `total` the sum of powers below it.
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH], tl.float32)

    # Pairs of tiles that every row of the block sees.
    end = block * ROWS // (2 * COLUMNS_APART) * (2 * COLUMNS_APART)
    for start in range(0, end, 2 * COLUMNS_APART):
        first, second = start + lanes, start + lanes + COLUMNS_APART
        key = _load(key_ptr, first, row_stride, length, HEAD, WIDTH, True)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        key = _load(key_ptr, second, row_stride, length, HEAD, WIDTH, True)
        more_scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
        new_top = tl.maximum(top, tl.max(tl.maximum(scores, more_scores), 1) * steepness)
        weights = tl.exp2(scores * steepness - new_top[:, None])
        more_weights = tl.exp2(more_scores * steepness - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weights + more_weights, 1)
        # What is dropped still counts in the sum by which the weights are divided.
        if DROPS:
            bits = column_hash(row_keys, first[None, :])
            weights = tl.where(bits * LOWER >= limit, weights, 0.0)
            more_weights = tl.where(bits * UPPER >= limit, more_weights, 0.0)
        out = out * shrink[:, None]
        value = _load(value_ptr, first, row_stride, length, HEAD, WIDTH, True)
        out = tl.dot(weights.to(value.dtype), value, out, input_precision=PRECISION)
        value = _load(value_ptr, second, row_stride, length, HEAD, WIDTH, True)
        out = tl.dot(more_weights.to(value.dtype), value, out, input_precision=PRECISION)
        top = new_top

    # The pair on the diagonal, or its first tile alone where the block ends before the second.
    bits = column_hash(row_keys, (end + lanes)[None, :])
    for half in tl.static_range(2):
        if end + half * COLUMNS_APART < (block + 1) * ROWS:
            columns = end + lanes + half * COLUMNS_APART
            key = _load(key_ptr, columns, row_stride, length, HEAD, WIDTH, False)
            value = _load(value_ptr, columns, row_stride, length, HEAD, WIDTH, False)
            scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
            scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1) * steepness)
            weights = tl.exp2(scores * steepness - new_top[:, None])
            shrink = tl.exp2(top - new_top)
            total = total * shrink + tl.sum(weights, 1)
            if DROPS:
                factor = LOWER if half == 0 else UPPER
                weights = tl.where(bits * factor >= limit, weights, 0.0)
            out = out * shrink[:, None]
            out = tl.dot(weights.to(value.dtype), value, out, input_precision=PRECISION)
            top = new_top

    out = out * (growth / total)[:, None]
    out_ptr += sequence.to(tl.int64) * length * dim + head * HEAD
    _store(out_ptr, rows, dim, length, out, HEAD, WIDTH)
    tl.store(lse_ptr + rows_of_all, top + tl.log2(total), mask=rows < length)


# --- Backward -------------------------------------------------------------------------------------
#
# With weights P, mask M (0 or `growth`) and output O = (P * M) V:
#   dV = (P * M)^T dO,   dS = P * ((dO V^T) * M - delta),   delta = sum(dO * O) of each row.
# The kernels compute dS / growth and give the factor back at the end, once instead of everywhere.


@triton.jit
def _absorb_keys(
    d_query,
    query,
    d_out,
    lse,
    delta,
    row_keys,
    rows,
    columns,
    key_ptr,  # of one head
    value_ptr,
    row_stride,
    length,
    threshold,
    steepness,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DIAGONAL: tl.constexpr,
):
    """Add a tile of keys to the gradients of a block of queries. Tiles are [rows, columns]."""
    key = _load(key_ptr, columns, row_stride, length, HEAD, WIDTH, not IS_DIAGONAL)
    value = _load(value_ptr, columns, row_stride, length, HEAD, WIDTH, not IS_DIAGONAL)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if IS_DIAGONAL:
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
    weights = tl.exp2(scores * steepness - lse[:, None])
    d_weights = tl.dot(d_out, tl.trans(value), input_precision=PRECISION)
    if DROPS:
        keep = is_kept(row_keys[:, None], columns[None, :], threshold)
        d_weights = tl.where(keep, d_weights, 0.0)
    d_scores = (weights * (d_weights - delta[:, None])).to(key.dtype)
    return tl.dot(d_scores, key, d_query, input_precision=PRECISION)


@triton.jit(do_not_specialize=["threshold", "length"])
def queries_kernel(
    qkv_ptr,  # [B, T, 3 D], columns adjacent
    out_ptr,  # [B, T, D]
    d_out_ptr,  # [B, T, D], columns adjacent
    lse_ptr,  # [B, H, T] float32, to base 2
    seed_ptr,  # [1] int64
    d_qkv_ptr,  # [B, T, 3 D]
    delta_ptr,  # [B, H, T] float32
    row_keys_ptr,  # [B, H, T] int32
    sequence_stride,
    row_stride,
    d_out_sequence_stride,
    d_out_row_stride,
    num_heads,
    length,
    threshold,
    steepness,
    growth,
    head_scale,  # of the scores
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of a block of queries; `delta / growth` and the rows' keys for the next kernel."""
    block, sequence, head = _place(tl.program_id(0), length, num_heads, ROWS)
    dim = num_heads * HEAD
    sequence = sequence.to(tl.int64)
    query_ptr = qkv_ptr + sequence * sequence_stride + head * HEAD
    key_ptr, value_ptr = query_ptr + dim, query_ptr + 2 * dim
    rows = block * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, COLUMNS)
    query = _load(query_ptr, rows, row_stride, length, HEAD, WIDTH, False)
    out_ptr += sequence * length * dim + head * HEAD
    out = _load(out_ptr, rows, dim, length, HEAD, WIDTH, False)
    d_out_ptr += sequence * d_out_sequence_stride + head * HEAD
    d_out = _load(d_out_ptr, rows, d_out_row_stride, length, HEAD, WIDTH, False)
    rows_of_all = (sequence * num_heads + head) * length + rows
    in_length = rows < length
    # A row behind the end has no weights at all.
    lse = tl.load(lse_ptr + rows_of_all, mask=in_length, other=float("inf"))
    delta = tl.sum(out.to(tl.float32) * d_out.to(tl.float32), 1) / growth
    tl.store(delta_ptr + rows_of_all, delta, mask=in_length)
    row_keys = row_keys_of(seed_ptr, rows_of_all)
    if DROPS:
        tl.store(row_keys_ptr + rows_of_all, row_keys.to(tl.int32, bitcast=True), mask=in_length)
    d_query = tl.zeros([ROWS, WIDTH], tl.float32)

    # Keys that every row of the block sees, then those on the diagonal.
    diagonal = block * ROWS // COLUMNS * COLUMNS
    for is_diagonal in tl.static_range(2):
        first = diagonal if is_diagonal else 0
        end = tl.minimum((block + 1) * ROWS, length) if is_diagonal else diagonal
        for start in range(first, end, COLUMNS):
            d_query = _absorb_keys(
                d_query,
                query,
                d_out,
                lse,
                delta,
                row_keys,
                rows,
                start + lanes,
                key_ptr,
                value_ptr,
                row_stride,
                length,
                threshold,
                steepness,
                HEAD,
                WIDTH,
                DROPS,
                PRECISION,
                is_diagonal,
            )

    d_query_ptr = d_qkv_ptr + sequence * length * 3 * dim + head * HEAD
    d_query = d_query * (head_scale * growth)
    _store(d_query_ptr, rows, 3 * dim, length, d_query, HEAD, WIDTH)


@triton.jit
def _absorb_queries(
    d_key,
    d_value,
    key,
    value,
    columns,
    rows,
    query_ptr,  # of one head, like the others
    d_out_ptr,
    lse_ptr,
    delta_ptr,
    row_keys_ptr,
    row_stride,
    d_out_row_stride,
    length,
    threshold,
    steepness,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DIAGONAL: tl.constexpr,
    ALL: tl.constexpr,
):
    """Add a tile of rows to the gradients of a block of keys and values. Tiles are [columns, rows]:
    what comes out of one product is then where the next one wants it."""
    query = _load(query_ptr, rows, row_stride, length, HEAD, WIDTH, ALL)
    d_out = _load(d_out_ptr, rows, d_out_row_stride, length, HEAD, WIDTH, ALL)
    if ALL:
        lse = tl.load(lse_ptr + rows)
        delta = tl.load(delta_ptr + rows)
    else:
        lse = tl.load(lse_ptr + rows, mask=rows < length, other=float("inf"))
        delta = tl.load(delta_ptr + rows, mask=rows < length, other=0.0)
    scores = tl.dot(key, tl.trans(query), input_precision=PRECISION)
    if IS_DIAGONAL:
        scores = tl.where(columns[:, None] <= rows[None, :], scores, float("-inf"))
    weights = tl.exp2(scores * steepness - lse[None, :])
    d_weights = tl.dot(value, tl.trans(d_out), input_precision=PRECISION)
    kept_weights = weights
    if DROPS:
        if ALL:
            row_keys = tl.load(row_keys_ptr + rows)
        else:
            row_keys = tl.load(row_keys_ptr + rows, mask=rows < length, other=0)
        row_keys = row_keys.to(tl.uint32, bitcast=True)
        keep = is_kept(row_keys[None, :], columns[:, None], threshold)
        kept_weights = tl.where(keep, weights, 0.0)
    d_value = tl.dot(kept_weights.to(d_out.dtype), d_out, d_value, input_precision=PRECISION)
    # A second use of the mask would cost more than a product of its own for `delta`.
    d_scores = (kept_weights * d_weights - weights * delta[None, :]).to(query.dtype)
    d_key = tl.dot(d_scores, query, d_key, input_precision=PRECISION)
    return d_key, d_value


@triton.jit(do_not_specialize=["threshold", "length"])
def keys_kernel(
    qkv_ptr,  # [B, T, 3 D], columns adjacent
    d_out_ptr,  # [B, T, D], columns adjacent
    lse_ptr,  # [B, H, T] float32, to base 2
    delta_ptr,  # [B, H, T] float32
    row_keys_ptr,  # [B, H, T] int32
    d_qkv_ptr,  # [B, T, 3 D]
    sequence_stride,
    row_stride,
    d_out_sequence_stride,
    d_out_row_stride,
    num_heads,
    length,
    threshold,
    steepness,
    growth,
    head_scale,
    HEAD: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    ROWS: tl.constexpr,
    IS_EVEN: tl.constexpr,  # ROWS divides the length
    DROPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of a block of keys and of their values."""
    block, sequence, head = _place(tl.program_id(0), length, num_heads, KEYS)
    dim = num_heads * HEAD
    sequence = sequence.to(tl.int64)
    query_ptr = qkv_ptr + sequence * sequence_stride + head * HEAD
    d_out_ptr += sequence * d_out_sequence_stride + head * HEAD
    row_of_all = (sequence * num_heads + head) * length
    lse_ptr += row_of_all
    delta_ptr += row_of_all
    row_keys_ptr += row_of_all
    columns = block * KEYS + tl.arange(0, KEYS)
    lanes = tl.arange(0, ROWS)
    key = _load(query_ptr + dim, columns, row_stride, length, HEAD, WIDTH, False)
    value = _load(query_ptr + 2 * dim, columns, row_stride, length, HEAD, WIDTH, False)
    d_key = tl.zeros([KEYS, WIDTH], tl.float32)
    d_value = tl.zeros([KEYS, WIDTH], tl.float32)

    # Rows on the diagonal, then those that see every key of the block, then what remains of them.
    diagonal_end = (block + 1) * KEYS
    whole_end = length // ROWS * ROWS
    for phase in tl.static_range(2 if IS_EVEN else 3):
        if phase == 0:
            first, end = block * KEYS, tl.minimum(diagonal_end, length)
        elif phase == 1:
            first, end = diagonal_end, whole_end
        else:
            first, end = tl.maximum(diagonal_end, whole_end), length
        for start in range(first, end, ROWS):
            d_key, d_value = _absorb_queries(
                d_key,
                d_value,
                key,
                value,
                columns,
                start + lanes,
                query_ptr,
                d_out_ptr,
                lse_ptr,
                delta_ptr,
                row_keys_ptr,
                row_stride,
                d_out_row_stride,
                length,
                threshold,
                steepness,
                HEAD,
                WIDTH,
                DROPS,
                PRECISION,
                phase == 0,
                IS_EVEN or phase == 1,
            )

    d_key_ptr = d_qkv_ptr + sequence * length * 3 * dim + dim + head * HEAD
    d_key = d_key * (head_scale * growth)
    _store(d_key_ptr, columns, 3 * dim, length, d_key, HEAD, WIDTH)
    _store(d_key_ptr + dim, columns, 3 * dim, length, d_value * growth, HEAD, WIDTH)
