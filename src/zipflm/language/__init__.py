"""What a user does with a trained model."""
