// kernels.h: the kernels that the fake driver can run.
#pragma once

#include <string>
#include <vector>

// A phase runs one thread of a kernel up to the next barrier of the whole grid, or to
// the end. params are the kernel's parameters as one struct.
using Phase = void (*)(const void *params);

// phases_of returns the phases of a kernel of gpu/kernels, none if there is no such.
std::vector<Phase> phases_of(const std::string &kernel);
