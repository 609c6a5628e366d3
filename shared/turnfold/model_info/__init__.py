"""What is known about models without calling one: tokenizers and context windows. Works offline and without litellm."""
