"""goflat on the fake CUDA driver (gpu/fakecuda), with the array library of array.c.

No torch and no GPU: every test runs in a process of its own in which ``libcuda.so.1`` is the fake
driver, see `fake.child`. Arrays lie on its devices, it checks each access of a kernel, and any
driver call can be made to fail.
"""
