"""gpudiag: where did the GPU time of a training job go, what proves it, what to change first."""

__version__ = "0.1.0"
