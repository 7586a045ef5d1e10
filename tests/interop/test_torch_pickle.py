import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from interop.pickles import number, program, text

from zipflm.interop.inert_pickle import Instance
from zipflm.interop.torch_pickle import StoredTensor, TorchUnpickler

TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"


def saved(value):
    """The pickle that torch makes of a value."""
    file = io.BytesIO()
    torch.save(value, file)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


def loaded(data):
    return TorchUnpickler().load(io.BytesIO(data))


def storage(kind=b"ctorch\nFloatStorage\n", key=None, length=None, more=b""):
    key = text("0") if key is None else key
    length = number(6) if length is None else length
    return b"(" + text("storage") + kind + key + text("cpu") + length + more + b"tQ"


def tensor(numbers=None, offset=0, shape=(2, 3), strides=(3, 1)):
    numbers = storage() if numbers is None else numbers
    sizes = [b"(" + b"".join(map(number, values)) + b"t" for values in (shape, strides)]
    return TENSOR + b"(" + numbers + number(offset) + b"".join(sizes) + b"\x89}tR"


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    + [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool],
)
def test_a_tensor_is_a_view_of_its_storage(dtype):
    numbers = torch.arange(24).to(dtype)
    view = numbers.view(4, 6)[1:3, ::2].t()
    stored = loaded(saved({"a": view}))["a"]
    assert (stored.storage.dtype, stored.storage.length) == (dtype, 24)
    assert stored.storage.num_bytes == numbers.numel() * numbers.element_size()
    assert stored.num_bytes == view.numel() * view.element_size()
    assert torch.equal(stored.of(numbers), view)


def test_a_parameter_is_its_tensor():
    stored = loaded(saved([torch.nn.Parameter(torch.zeros(2, 3))]))[0]
    assert isinstance(stored, StoredTensor)
    assert stored.shape == (2, 3)


def test_weights_from_a_gpu_are_weights():
    stored = loaded(program(tensor(storage(b"ctorch.cuda\nHalfStorage\n"))))
    assert stored.storage.dtype == torch.float16


def test_numbers_that_are_negated_on_use_are_refused():
    # torch notes that in the tensor, and the storage holds the numbers with their old sign.
    with pytest.raises(ValueError, match="a tensor whose numbers are not what the file holds"):
        loaded(saved(torch._neg_view(torch.ones(3))))


def test_storages_are_listed_once():
    shared = torch.zeros(5)
    unpickler = TorchUnpickler()
    unpickler.load(io.BytesIO(saved([shared, shared[1:], torch.zeros(7).half()])))
    assert sorted(s.length for s in unpickler.storages.values()) == [5, 7]


def test_containers_are_dictionaries_and_objects_are_kept_apart():
    value = loaded(program(b"ccollections\nOrderedDict\n)R", text("a"), number(1), b"s"))
    assert value == {"a": 1}
    meter = loaded(program(b"cfairseq.meters\nAverageMeter\n)\x81}", text("sum"), b"Nsb"))
    assert isinstance(meter, Instance)


def test_numbers_of_numpy_do_no_harm():
    value = loaded(pickle.dumps({"best": np.float64(3.5), "loss": np.float32(1)}, 2))
    assert {instance.name.rpartition(".")[2] for instance in value.values()} == {"scalar"}


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "builtins.getattr", "__builtin__.open", "fairseq2.X"]
    + ["torch.load", "torch._utils._rebuild_tensor", "typingx.Any", "functools.partial"],
)  # fmt: skip
def test_other_names_are_refused(name):
    module, _, function = name.rpartition(".")
    data = program(f"c{module}\n{function}\n".encode(), b"0N")
    with pytest.raises(ValueError, match=f"refused, because it names {name}; zipflm reads"):
        loaded(data)


def test_names_are_refused_even_if_the_pickle_is_damaged():
    with pytest.raises(ValueError, match="refused, because it names os.system"):
        loaded(program(b"cos\nsystem\n") [:-1])  # fmt: skip


def test_names_are_printed_safely():
    with pytest.raises(ValueError, match=r"names \\x1b\[2J.x; zipflm"):
        loaded(program(b"c\x1b[2J\nx\n"))


@pytest.mark.parametrize(
    ("opcodes", "reason"),
    [
        ([text("storage"), b"Q"], "a reference that is not a tensor's"),
        ([b"(", text("other"), b"NNNNtQ"], "a reference that is not a tensor's"),
        ([storage(b"N")], "a reference that is not a tensor's"),
        ([storage(b"ccollections\nOrderedDict\n")], "a reference that is not a tensor's"),
        ([storage(key=number(0))], "a kind that torch no longer writes"),
        ([storage(more=b")")], "a kind that torch no longer writes"),
        ([storage(length=number(-1))], "a tensor with -1 numbers"),
        ([storage(length=b"\x88")], "a tensor with True numbers"),
        ([storage(), b"0", storage(length=number(7))], "two sizes for .* '0'"),
        ([tensor(shape=(3, 3))], "a tensor of 9 numbers in a row of 6"),
        ([tensor(offset=1)], "a tensor of 7 numbers in a row of 6"),
        ([tensor(offset=-1)], "a tensor without numbers"),
        ([tensor(strides=(3, -1))], "a tensor without a shape"),
        ([tensor(shape=(2,))], "a tensor without a shape"),
        ([tensor(shape=[1] * 9, strides=[1] * 9)], "a tensor without a shape"),
        ([tensor(b"N")], "a tensor without numbers"),
        ([TENSOR, b")R"], "a tensor of a kind that fairseq does not write"),
        ([b"ctorch._utils\n_rebuild_parameter\nN\x85R"], "a parameter that is not a tensor"),
    ],
)
def test_tensors_that_cannot_be_are_refused(opcodes, reason):
    with pytest.raises(ValueError, match=f"cut short, damaged or no file of torch: .*{reason}"):
        loaded(program(*opcodes))
