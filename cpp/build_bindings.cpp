#include "build_bindings.h"

#include "arguments.h"
#include "mch/external.h"

namespace mch {

const char* const kBuildDoc =
    "Build a table in a file from more codes than fit into memory. Open it with load().\n\n"
    "An existing file is replaced when the new one is complete.\n\n"
    "Args:\n"
    "    path: The file.\n"
    "    chunks: An iterable of (ids, codes) or (ids, codes, regions), arrays as add() takes them.\n"
    "    bits: Bits per code: a multiple of 8 from 8 to 256.\n"
    "    layout: \"wide\" (64 bits only): small and fast for very many codes; \"plain\": that of add();\n"
    "        \"auto\": wide for 2**24 or more codes of 64 bits.\n"
    "    memory: Bytes to use for buffers and for sorting, at least 2**20.\n"
    "    resume: Whether to resume an unfinished build, which lies in the folder path + \".building\";\n"
    "        the chunks must be the same again. False deletes it.\n"
    "    progress: Called with the name of a step, how much of it is done, and how much there is, or\n"
    "        None.\n\n"
    "Raises:\n"
    "    ValueError: An argument is wrong, or the chunks of an unfinished build were different.\n"
    "    OSError: A file cannot be read or written; the build can then be resumed.";

namespace {

Layout layout_argument(const std::string& name, int bits) {
    if (name == "auto") return Layout::automatic;
    if (name == "plain") return Layout::plain;
    if (name != "wide") throw py::value_error("layout must be \"auto\", \"wide\" or \"plain\", not \"" + name + "\"");
    if (bits != 64)
        throw py::value_error("layout \"wide\" is for 64 bits only, not " + std::to_string(bits) + "; use \"plain\"");
    return Layout::wide;
}

// The ids, codes and regions of a chunk.
RowArguments chunk_argument(const py::handle& chunk, int bits) {
    const char* want = "each chunk must be (ids, codes) or (ids, codes, regions)";
    if (!py::isinstance<py::tuple>(chunk) && !py::isinstance<py::list>(chunk))
        throw py::type_error(std::string(want) + ", not " + type_name(chunk));
    auto parts = py::reinterpret_borrow<py::sequence>(chunk);
    if (parts.size() != 2 && parts.size() != 3)
        throw py::value_error(std::string(want) + ", not " + std::to_string(parts.size()) + " things");
    return rows_argument(parts[0], parts[1], parts.size() == 3 ? py::object(parts[2]) : py::none(), bits);
}

}  // namespace

void build_table(const py::object& path, const py::object& chunks, const py::object& bits, const std::string& layout,
                 const py::object& memory, bool resume, const py::object& progress) {
    BuildOptions o;
    o.path = file_path(path);
    o.bits = bits_argument(bits);
    o.layout = layout_argument(layout, o.bits);
    o.memory = uint64_t(integer(memory, "memory", int64_t(TableBuilder::smallest_memory), INT64_MAX, true));
    o.resume = resume;
    if (!progress.is_none() && !PyCallable_Check(progress.ptr()))
        throw py::type_error("progress must be a function of (step, done, total), not " + type_name(progress));
    o.progress = [&](const char* step, uint64_t done, uint64_t total) {
        py::gil_scoped_acquire acquire;
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        if (!progress.is_none()) progress(step, done, total ? py::object(py::int_(total)) : py::none());
    };
    py::iterator each = py::iter(chunks);
    TableBuilder builder(std::move(o));
    const int width = int(bits_argument(bits));
    for (; each != py::iterator::sentinel(); ++each) {
        const RowArguments rows = chunk_argument(*each, width);
        py::gil_scoped_release release;
        builder.add(rows.ids.data(), rows.codes.data(), rows.regions.empty() ? nullptr : rows.regions.data(),
                    rows.size());
    }
    py::gil_scoped_release release;
    builder.finish();
}

}  // namespace mch
