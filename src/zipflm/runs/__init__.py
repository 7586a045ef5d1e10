"""Everything a run has on disk, with types: its folder, checkpoints, log, and how to load it.

    run/
        config.json       the resolved config (`zipflm.config.Config`)
        versions.json     packages, commit, vocabulary and text (`records.Versions`)
        log.jsonl         one `Report` or `Validation` per line (`folder`)
        checkpoints/      whole or absent, each with its checksums (`checkpoint`)

Training writes through this package; evaluation, studies and interop read through it.
Nothing else knows a file's name.
"""
