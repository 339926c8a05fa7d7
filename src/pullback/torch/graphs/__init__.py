"""`accelerate(model, graphs=True)`: forward and backward pass of a whole model as CUDA graphs, which take no Python to launch.

kinds (what a recording holds for, and when none can be replayed) · recording (one pair of graphs, and its autograd node) · model
(which call records, replays or runs eagerly; the class of such a model).
"""
