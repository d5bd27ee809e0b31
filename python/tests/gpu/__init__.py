"""goflat on real NVIDIA GPUs: values, streams, graphs, memory, several devices.

Needs pytest and a torch with CUDA, nothing else; tools/test_gpu.sh runs it on a bare machine. It
is skipped where torch sees no GPU, unless GOFLAT_REQUIRE_GPU=1 (see conftest). Every test fails if
a call leaves the extension for the fall-back, unless it asks for the fixture `any_engine`.
"""
