"""Run folders: configs, checkpoints, logs, and loading.

run/
    config.json       the resolved config (`zipflm.config.Config`)
    versions.json     packages, commit, data and device (`records.Versions`)
    log.jsonl         one `records.Report` or `records.Validation` per line
    checkpoints/      written atomically, each with checksums (`checkpoint`)

An imported model has neither versions.json nor log.jsonl.
"""
