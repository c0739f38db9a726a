"""Speed and memory on this machine, as ratios against named alternatives."""
