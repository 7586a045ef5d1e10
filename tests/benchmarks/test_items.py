"""The benchmark of next-item models runs at toy size, for every model."""

from benchmark_scripts import load


def test_every_model_is_measured(capsys):
    benchmark = load("items")
    small = ["--items", "2000", "--dim", "32", "--users", "2", "--length", "4", "--repeats", "1"]
    benchmark.main(["--device", "cpu", *small])
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert "2,000 items, 32 wide, 8 predictions a step" in first
    assert [row[:12].strip() for row in rows] == list(benchmark.MODELS)
    parameters = [int(row[12:].split()[0].replace(",", "")) for row in rows]
    assert parameters[0] > parameters[1] > parameters[2] > 0


def test_every_model_scores_every_next_item():
    benchmark = load("items")
    torch = benchmark.torch
    sequences = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for model in benchmark.MODELS.values():
        loss = model(50, 16)(sequences)
        assert loss.shape == () and 2 < loss.item() < 6  # about log(50)
