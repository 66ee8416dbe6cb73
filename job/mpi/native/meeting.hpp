// How the engines of a communicator's ranks find one another; the same as runners/engine/library.py.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "chorale_engine.h"

namespace chorale::job {

// The same on two ranks if they can share memory and do so without leaving an emulated network.
std::string network_id();

// Gathers `text` of all ranks, at most 1,023 bytes each; throws std::runtime_error after `limit_s`.
std::vector<std::string> gather_texts(MPI_Comm comm, const std::string& text, double limit_s);

// Connects `engine`, whose programs are loaded, to those of all ranks of `comm`, which call this at the same time: by
// shared memory within a network of a machine, else by TCP over `interface` (empty: what MPI is told to use, else what leads to the host of another rank).
// Throws std::runtime_error.
void meet(chorale_engine* engine, MPI_Comm comm, const std::string& interface, double limit_s);

}  // namespace chorale::job
