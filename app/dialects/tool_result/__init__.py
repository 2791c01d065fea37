"""What the model reads after a refusal: the message to hand back in the place of the tool's answer, one module a format."""
