"""Run folders: configs, checkpoints, logs, and loading.

run/
    config.json       the resolved config (`zipflm.config.Config`)
    versions.json     packages, commit, vocabulary and text (`records.Versions`)
    log.jsonl         one `Report` or `Validation` per line (`folder`)
    checkpoints/      written atomically, each with checksums (`checkpoint`)
"""
