"""lm-evaluation-harness with `local-completions` matches the library.

Skipped unless the harness is installed here or for the Python in the variable ZIPFLM_LM_EVAL.
"""

import json
import os
import subprocess
import sys

import pytest
from serving.services import Running

TEXTS = ["ba be noro boro", "ka ke\nbu ban\n"]
CHOICES = [("ba be", ["noro boro", "bu"]), ("ka ke kila", ["ba", "boro bi"])]
TASK = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/{task}.jsonl}}}}
test_split: test
task: {task}
"""
ROLLING = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}]
"""
CHOOSING = """
output_type: multiple_choice
doc_to_text: "{{start}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]
"""
WRITING = """
output_type: generate_until
doc_to_text: "{{start}}"
doc_to_target: ""
generation_kwargs: {until: ["\\n"], max_gen_toks: 6}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def harness():
    python = os.environ.get("ZIPFLM_LM_EVAL", sys.executable)
    needed = "import lm_eval, tenacity, aiohttp, requests"
    if subprocess.run([python, "-c", needed], capture_output=True, env=environment()).returncode:
        pytest.skip("needs lm-eval[api], here or in the Python of ZIPFLM_LM_EVAL")
    return [python, "-m", "lm_eval", "run", "--model", "local-completions"]


def environment():
    without = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return without | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def write_tasks(folder):
    starts = [{"start": start, "choices": choices} for start, choices in CHOICES]
    for task, body, rows in (
        ("rolling", ROLLING, [{"text": text} for text in TEXTS]),
        ("choosing", CHOOSING, starts),
        ("writing", WRITING, starts),
    ):
        (folder / f"{task}.yaml").write_text(TASK.format(folder=folder, task=task) + body)
        (folder / f"{task}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def samples(folder, task):
    (path,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [each["resps"] for each in sorted(found, key=lambda each: each["doc_id"])]


@pytest.mark.slow
@pytest.mark.parametrize("requests", ["True", "False"], ids=["ids", "texts"])
@pytest.mark.parametrize("name", ["words", "pieces"])
def test_lm_eval_matches_the_library(harness, models, tmp_path, name, requests):
    write_tasks(tmp_path)
    lm = models[name].lm
    # Its tokenizer uses the first model.
    with Running({name: models[name]}) as service:
        arguments = (
            f"model={name},base_url={service.url}/v1/completions,max_length=200,"
            f"tokenized_requests={requests}"
        )
        tasks = ["--include_path", str(tmp_path), "--tasks", "rolling,choosing,writing"]
        out = ["--output_path", str(tmp_path / "out"), "--log_samples"]
        done = subprocess.run(
            [*harness, "--model_args", arguments, *tasks, *out],
            env=environment() | {"HF_HOME": str(tmp_path / "home")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=250,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    for text, ((told,),) in zip(TEXTS, samples(tmp_path, "rolling"), strict=True):
        scored = lm.score(text)
        expected = sum(word.logprob for word in scored.words[: None if text[-1] == "\n" else -1])
        assert float(told) == pytest.approx(expected, abs=1e-4)
    for (start, choices), told in zip(CHOICES, samples(tmp_path, "choosing"), strict=True):
        for choice, ((logprob, is_greedy),) in zip(choices, told, strict=True):
            words = lm.score(choice, prefix=start).words[:-1]
            assert float(logprob) == pytest.approx(sum(w.logprob for w in words), abs=1e-4)
            if name == "words":
                before = [f"{start} {choice[: word.span[0]]}" for word in words]
                best = [each[0].word for each in lm.next_words(before, 1)]
                assert is_greedy == str(best == [word.word for word in words])
    for (start, _), ((told,),) in zip(CHOICES, samples(tmp_path, "writing"), strict=True):
        expected = lm.generate(start, max_words=6, temperature=0)[0].continuation
        assert expected.removesuffix("\n").startswith(told) and told
