"""A bigram model for tests."""

import math
from collections import Counter


class Bigrams:
    """Bigram probabilities with add-one smoothing over 20 words."""

    def __init__(self, *sentences):
        self.pairs, self.firsts = Counter(), Counter()
        for sentence in sentences:
            words = ["</s>", *sentence.split(), "</s>"]
            self.pairs.update(zip(words, words[1:], strict=False))
            self.firsts.update(words[:-1])
        self.calls = []

    def log_prob(self, text):
        words = ["</s>", *text.split(), "</s>"]
        return sum(
            math.log((self.pairs[pair] + 1) / (self.firsts[pair[0]] + 20))
            for pair in zip(words, words[1:], strict=False)
        )

    def __call__(self, texts):
        self.calls.append(list(texts))
        return [self.log_prob(text) for text in texts]
