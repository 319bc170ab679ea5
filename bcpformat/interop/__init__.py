"""Import and export: safetensors, torch.save files, .npy files."""
