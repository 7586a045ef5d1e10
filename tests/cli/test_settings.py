"""Settings are found by the names that people try, and can stand in a file."""

import pytest

from zipflm.cli.settings import _ELSEWHERE, expanded, settings_like


@pytest.mark.parametrize(
    ("name", "args", "keys"),
    [
        ("lr", ["tiny/ADP-T"], ["training.schedule.max_lr"]),
        ("lr", ["demo/ADP-T"], ["training.optimizer.lr"]),
        ("lr", ["tiny/ADP-T", "--recipe", "modern"], ["training.optimizer.lr"]),
        ("lr", ["--preset", "demo"], ["training.optimizer.lr"]),
        ("training.max_updates", [], ["training.max_updates"]),
        ("max-updates", [], ["training.max_updates"]),
        ("epochs", [], ["training.epochs"]),
        ("num-epochs", [], ["training.epochs"]),
        ("batch-size", [], ["training.tokens_per_update"]),
        ("dim", ["tiny/ADP-T"], ["input.dim", "decoder.dim", "output.dim"]),
        ("num_layer", [], ["decoder.num_layers"]),
        ("training.lr", ["tiny/ADP-T"], ["training.schedule.max_lr"]),
        ("colour", [], []),
        ("x" * 10_000, [], []),
    ],
)
def test_a_name_leads_to_the_settings_that_may_be_meant(name, args, keys):
    assert settings_like(name, args) == keys


@pytest.mark.parametrize("name", _ELSEWHERE)
def test_every_name_of_other_programs_leads_somewhere(name):
    assert settings_like(name)


def test_a_file_of_settings_stands_for_its_lines(tmp_path):
    path = tmp_path / "my.cfg"
    path.write_text("# mine\n\ndecoder.dim=8   # narrow\n  training.seed=2\n#a=b\nname=x#1\n")
    assert expanded(["a=1", f"@{path}", "b=2"]) == [
        *("a=1", "decoder.dim=8", "training.seed=2", "name=x#1", "b=2")
    ]
    assert expanded(None) == []


def test_a_file_that_is_no_text_is_refused_by_name(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="x: not a text; name a file of lines key=value"):
        expanded([f"@{tmp_path / 'x'}"])
