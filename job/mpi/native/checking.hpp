// The check of a table before a job runs it, by Python: job/mpi/checking.py.
#pragma once

#include <string>

namespace chorale::job {

// What is wrong with the table in the file `path`, whose digest is `digest`; empty where nothing is. Within `limit_s`.
std::string table_verdict(const std::string& path, const std::string& digest, double limit_s);

}  // namespace chorale::job
