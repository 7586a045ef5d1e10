"""Studies: plan, train, score and compare models, and report the results."""
