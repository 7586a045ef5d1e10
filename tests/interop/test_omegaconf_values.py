import argparse
import io
import pickle

import pytest
from interop.omegaconf_files import Activation, as_omegaconf, omegaconf_classes

from zipflm.interop.inert_pickle import Instance
from zipflm.interop.omegaconf_values import named_values, resolved, unwrapped
from zipflm.interop.torch_pickle import TorchUnpickler


def node(value):
    return Instance("omegaconf.nodes.AnyNode", (), {"_val": value})


def config(content):
    return Instance("omegaconf.dictconfig.DictConfig", (), {"_content": content})


@pytest.mark.parametrize("typed", [False, True], ids=["untyped", "typed"])
def test_what_omegaconf_pickles_is_found_again(typed):
    values = {"a": 3, "b": "text", "c": None, "d": True, "e": 0.5, "f": Activation.RELU}
    with omegaconf_classes():
        data = pickle.dumps(as_omegaconf({"model": values, "list": [1, "x"]}, typed=typed), 2)
    sections = named_values(TorchUnpickler().load(io.BytesIO(data)))
    model = named_values(sections["model"])
    expected = values | {"f": "relu"}
    assert {name: unwrapped(value) for name, value in model.items()} == expected
    assert [unwrapped(value) for value in unwrapped(sections["list"])] == [1, "x"]


def test_other_values_stay_as_they_are():
    meter = Instance("fairseq.meters.AverageMeter", (), {"sum": 3})
    for value in (None, 3, "x", [node(1)], {"a": node(1)}, meter):
        assert unwrapped(value) is value


@pytest.mark.parametrize("state", [None, 3, {}, ({}, {})], ids=str)
@pytest.mark.parametrize(
    "name", ["nodes.AnyNode", "dictconfig.DictConfig", "listconfig.ListConfig"]
)
def test_containers_without_contents_stay_as_they_are(name, state):
    broken = Instance(f"omegaconf.{name}", (), state)
    assert unwrapped(broken) is broken
    assert named_values(broken) is None


def test_a_section_may_be_a_namespace():
    namespace = TorchUnpickler().load(io.BytesIO(pickle.dumps(argparse.Namespace(a=1), 2)))
    assert named_values(namespace) == named_values(node(namespace)) == {"a": 1}
    assert named_values(Instance("argparse.Namespace", ())) == {}


def test_a_container_that_is_off_is_none():
    assert unwrapped(config(None)) is None
    assert named_values(config(None)) is None


def test_references_are_followed():
    sections = {
        "task": config({"tokens": node(64), "same": node("${task.tokens}")}),
        "model": config({"tokens": node("${task.same}")}),
    }
    assert resolved(node("${task.tokens}"), sections) == 64
    assert resolved(node("${model.tokens}"), sections) == 64


@pytest.mark.parametrize(
    "text",
    ["${task.absent}", "${absent.x}", "${env:HOME}", "${.x}", "${task.x}/y", "${task}", "plain"],
)
def test_references_that_lead_nowhere_stay_text(text):
    assert resolved(node(text), {"task": config({"tokens": node(64)})}) == text


def test_values_that_contain_themselves_end():
    ring = node(None)
    ring.state["_val"] = ring
    assert unwrapped(ring) is ring
    sections = {"a": {"x": "${a.y}", "y": "${a.x}"}}
    assert resolved("${a.x}", sections) in ("${a.x}", "${a.y}")
