#include "guard.hpp"

#include <link.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace chorale::job {

namespace {

#if defined(MPI_ABI)
constexpr const char* OWN = "the standard ABI";
#elif defined(OPEN_MPI)
constexpr const char* OWN = "Open MPI";
#else
constexpr const char* OWN = "MPICH and its kin";
#endif

bool begins(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

int add_mpi_library(dl_phdr_info* object, size_t, void* names) {
    const std::string path = object->dlpi_name == nullptr ? "" : object->dlpi_name;
    const std::string name = path.substr(path.rfind('/') + 1);
    auto& libraries = *static_cast<std::vector<std::string>*>(names);
    const bool is_new = std::find(libraries.begin(), libraries.end(), name) == libraries.end();
    if (is_new && is_mpi_library(name)) libraries.push_back(name);
    return 0;
}

}  // namespace

bool is_mpi_library(const std::string& name) {
    return begins(name, "libmpi.so") || begins(name, "libmpi_abi.so") || begins(name, "libmpich.so");
}

std::vector<std::string> loaded_mpi_libraries() {
    std::vector<std::string> names;
    dl_iterate_phdr(add_mpi_library, &names);
    return names;
}

void require_own_mpi() {
    const auto names = loaded_mpi_libraries();
    if (names.size() < 2) return;  // what this library is linked with is there always
    std::string text;
    for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
    std::fprintf(stderr,
                 "chorale: the preloaded library is built for %s, and the program uses another MPI (%s): build one "
                 "for it by `python -m chorale.job.mpi.preload MPICC`, or run without LD_PRELOAD\n",
                 OWN, text.c_str());
    std::fflush(stderr);
    std::_Exit(1);
}

}  // namespace chorale::job
