"""Both sides of the comparison with TRL's PPO; the side that runs TRL imports nothing of rlhf_core."""
