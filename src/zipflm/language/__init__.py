"""What a user does with a trained model: load it, score and rescore text, write with it."""
