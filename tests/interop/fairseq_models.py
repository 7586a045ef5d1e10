"""Small models of every kind that fairseq can save."""

from dataclasses import replace

import torch
from fairseq_checkpoints import DICT

from zipflm.config import (
    AdaptiveInput,
    AdaptiveOutput,
    CharacterInput,
    FixedInput,
    FullOutput,
    ModelConfig,
    Tie,
    TransformerDecoder,
)
from zipflm.data.encoding import spellings
from zipflm.data.vocabulary import Vocabulary
from zipflm.model.language_model import LanguageModel

VOCABULARY = Vocabulary.load(DICT)
SIZE = len(VOCABULARY)
DECODER = TransformerDecoder(dim=16, num_layers=2, num_heads=2, ffn_dim=24)
BANDS = {"cutoffs": (60, 200), "dim": 16, "factor": 4}
CHARACTERS = CharacterInput(char_dim=4, filters=((1, 4), (3, 6)), highway_layers=2)
MODELS = {
    "SM": (FixedInput(dim=8), FullOutput(dim=12), Tie.NONE),
    "SM-T": (FixedInput(dim=8), FullOutput(dim=8), Tie.EMBEDDINGS),
    "BPE-T": (FixedInput(dim=16), FullOutput(dim=16), Tie.EMBEDDINGS),
    "ASM": (FixedInput(dim=8), AdaptiveOutput(**BANDS), Tie.NONE),
    "ASM narrow": (FixedInput(dim=8), AdaptiveOutput(cutoffs=(60,), dim=8), Tie.NONE),
    "CNN": (CHARACTERS, AdaptiveOutput(**BANDS), Tie.NONE),
    "ADP": (AdaptiveInput(**BANDS), AdaptiveOutput(**BANDS), Tie.NONE),
    "ADP tied embeddings": (AdaptiveInput(**BANDS), AdaptiveOutput(**BANDS), Tie.EMBEDDINGS),
    "ADP-T": (AdaptiveInput(**BANDS), AdaptiveOutput(**BANDS), Tie.PROJECTIONS),
}


def build(kind, *, final_norm=False):
    layer_in, layer_out, tie = MODELS[kind]
    decoder = replace(DECODER, final_norm=final_norm)
    config = ModelConfig(
        vocab_size=SIZE, input=layer_in, decoder=decoder, output=layer_out, tie=tie
    )
    model = LanguageModel(config, torch.from_numpy(spellings(VOCABULARY, 50))).eval()
    for parameter in model.parameters():  # so that no bias is 0 and no gain 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def require_same(model, imported):
    table = torch.from_numpy(spellings(VOCABULARY, 50))
    again = LanguageModel(imported.config, table).eval()
    again.load_state_dict(imported.weights)
    words, targets = torch.randint(SIZE, (2, 2, 9))
    with torch.no_grad():
        torch.testing.assert_close(again.nll(words, targets), model.nll(words, targets))
