"""What is sent: channels, their moments, keys, codes and bytes."""
