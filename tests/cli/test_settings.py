import pytest

from zipflm.cli.app import expanded


def test_a_file_of_settings_stands_for_its_lines(tmp_path):
    path = tmp_path / "my.cfg"
    path.write_text("# mine\n\ndecoder.dim=8   # narrow\n  training.seed=2\n#a=b\nname=x#1\n")
    assert expanded(["a=1", f"@{path}", "b=2"]) == [
        *("a=1", "decoder.dim=8", "training.seed=2", "name=x#1", "b=2")
    ]
    (tmp_path / "x").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="x: not a text; name a file of lines key=value"):
        expanded([f"@{tmp_path / 'x'}"])
