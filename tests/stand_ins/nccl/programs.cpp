// Programs of MSCCL in the stand-in: which calls they serve, by the rules of the runtimes, and what is logged.
// STAND_IN_FAULT plays: half-loaded, fall-back, fall-back above 1 MiB, LL128 falls back, like the library, wrong, hang.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <unistd.h>

#include "types.hpp"

namespace stand_in {

namespace {

std::string text(const char* name) {
    const char* value = getenv(name);
    return value == nullptr ? "" : value;
}

std::string attribute(const std::string& head, const std::string& name) {
    const size_t start = head.find(" " + name + "=\"");
    if (start == std::string::npos) return "";
    const size_t first = start + name.size() + 3;
    return head.substr(first, head.find('"', first) - first);
}

size_t whole(const std::string& digits) { return digits.empty() ? 0 : std::stoull(digits); }

}  // namespace

void load_program(Communicator& own) {
    const std::string runtime = text("STAND_IN_RUNTIME"), folder = text("MSCCL_ALGO_DIR");
    std::string path = runtime == "msccl" ? text("MSCCL_XML_FILES") : "";
    const bool is_off = text("NCCL_MSCCL_ENABLE") == "0" || text("RCCL_MSCCL_ENABLE") == "0";
    const bool is_forced = runtime != "rccl" || text("RCCL_MSCCL_FORCE_ENABLE") == "1";
    if (runtime != "msccl" && runtime != "" && folder != "" && !is_off && is_forced)
        for (const auto& entry : std::filesystem::directory_iterator(folder)) path = entry.path();
    if (path.empty()) return;
    Program& program = own.program;
    program.fault = text("STAND_IN_FAULT");
    if (program.fault == "half-loaded" && own.rank == 1) {
        log(LEVEL_WARN, ALL, __FILE__, __LINE__, "MSCCL: algorithm %s failed to initialize. Will be ignored.", path.c_str());
        return;
    }
    std::ostringstream content;
    content << std::ifstream(path).rdbuf();
    const std::string file = content.str(), head = file.substr(0, file.find('>'));
    program.collective = attribute(head, "coll"), program.protocol = attribute(head, "proto");
    program.chunks = whole(attribute(head, "nchunksperloop"));
    program.min_bytes = whole(attribute(head, "minBytes")), program.max_bytes = whole(attribute(head, "maxBytes"));
    program.in_place = attribute(head, "inplace") == "1" || attribute(head, "outofplace") == "0";
    const bool is_first = runtime == "msccl";
    log(LEVEL_INFO, INIT, __FILE__, __LINE__, is_first ? "Connected 1 MSCCL algorithms" : "MSCCL: Initialization finished, localSize 4096");
}

double program_us(Communicator& own, Collective collective, size_t vector_bytes, size_t elements, bool in_place) {
    const Program& program = own.program;
    const char* const names[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
    const std::string& fault = program.fault;
    const bool fits = vector_bytes >= program.min_bytes && (program.max_bytes == 0 || vector_bytes <= program.max_bytes);
    const bool serves = program.chunks > 0 && fits && elements % program.chunks == 0 && program.collective == names[collective] &&
                        program.in_place == in_place;
    if (!serves || fault == "fall-back" || fault == program.protocol + " falls back") return -1;
    if (fault == "fall-back above 1 MiB" && vector_bytes > 1 << 20) return -1;
    if (fault == "hang")
        for (;;) pause();
    if (text("STAND_IN_RUNTIME") != "msccl") log(LEVEL_INFO, INIT | COLL, __FILE__, __LINE__, "MSCCL: typeMask 3 Setup Kernel finished, smem 4096");
    if (fault == "like the library") return -1;
    const double start_us = program.protocol == "LL" ? 400 : program.protocol == "LL128" ? 700 : 1200;
    double pace = program.protocol == "LL" ? 60 : program.protocol == "LL128" ? 150 : 500;  // bytes a microsecond
    const char* buffer = getenv(program.protocol == "LL" ? "NCCL_LL_BUFFSIZE" : program.protocol == "LL128" ? "NCCL_LL128_BUFFSIZE" : "NCCL_BUFFSIZE");
    if (buffer != nullptr) pace *= double(atol(buffer)) / (1 << 22);
    return start_us + double(vector_bytes) / pace;
}

}  // namespace stand_in
