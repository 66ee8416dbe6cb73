#pragma once

#include <string>
#include <vector>

namespace chorale::job {

// Whether a file of this name, without its folder, is an MPI library that programs are linked with.
bool is_mpi_library(const std::string& name);

// The MPI libraries that this process has loaded, by their files' names.
std::vector<std::string> loaded_mpi_libraries();

// Ends the process, after a line on stderr, where the program uses another MPI than the one this library is built for:
// handles differ, so that no call could even be handed on.
void require_own_mpi();

}  // namespace chorale::job
