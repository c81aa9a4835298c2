"""A judge as a reward in TRL and verl, and CARB as a task of inspect-ai."""
