"""A judge as a reward in TRL and verl, in RewardBench 2's runner, and in inspect-ai."""
