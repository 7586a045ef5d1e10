"""Both memories in a few lines of float64, word by word."""

import numpy as np


def unit(hidden):
    hidden = np.asarray(hidden, dtype=np.float64)
    return hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)


def recalled(query, keys, words, temperature, num_words):
    """p_memory over all words; all zero if nothing is remembered."""
    probs = np.zeros(num_words)
    if len(keys):
        scores = unit(keys) @ unit(query) / temperature
        weights = np.exp(scores - scores.max())
        np.add.at(probs, words, weights / weights.sum())
    return probs


def with_cache(probs, hidden, words, *, window=None, weight, temperature, begins=()):
    """The model's distributions [N, V] mixed with a cache over words [N] in order."""
    mixed, begin = np.array(probs, dtype=np.float64), 0
    for i in range(len(words)):
        begin = i if i in begins else begin
        low = begin if window is None else max(begin, i - window)
        cache = recalled(hidden[i], hidden[low:i], words[low:i], temperature, probs.shape[1])
        mixed[i] = mixed[i] * (1 - weight * (low < i)) + weight * cache
    return mixed


def with_neighbors(probs, hidden, keys, values, *, k, weight, temperature):
    mixed = np.array(probs, dtype=np.float64)
    for i, query in enumerate(hidden):
        nearest = np.argsort(-(unit(keys) @ unit(query)), kind="stable")[:k]
        found = recalled(query, keys[nearest], values[nearest], temperature, probs.shape[1])
        mixed[i] = (1 - weight) * mixed[i] + weight * found
    return mixed
