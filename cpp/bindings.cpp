// The Python module: classes, functions and their documentation.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <system_error>

#include "arguments.h"
#include "fine_bindings.h"
#include "mch/probe.h"
#include "mch/scan.h"
#include "mch/snapshot.h"
#include "mch/table.h"
#include "mch/workers.h"

using namespace mch;

namespace {

SearchOptions common_options(const py::object& allowed, const std::string& strategy, const py::object& threads) {
    SearchOptions o;
    if (!allowed.is_none()) o.allowed = id_list(allowed, "allowed");
    o.strategy = strategy_argument(strategy);
    o.threads = int(integer(threads, "threads", 0, Workers::most, true));
    return o;
}

struct SearchResult {
    py::array_t<int64_t> ids;
    py::array_t<int32_t> distances;
    py::array_t<int16_t> regions;
    py::array_t<int64_t> counts, buckets, candidates;
    py::array_t<int32_t> radius;
    py::array_t<bool> exact;

    SearchResult(py::ssize_t n, py::ssize_t k)
        : ids({n, k}), distances({n, k}), regions({n, k}), counts(n), buckets(n), candidates(n), radius(n), exact(n) {}
};

struct RangeResult {
    py::array_t<int64_t> lims, ids;
    py::array_t<int32_t> distances;
    py::array_t<int16_t> regions;

    RangeResult(py::ssize_t n, py::ssize_t hits) : lims(n + 1), ids(hits), distances(hits), regions(hits) {}
};

void add(AnyTable& table, const py::object& ids, const py::object& codes, const py::object& regions) {
    Bytes c = packed_codes(codes, table.bits(), "codes");
    Ids i = integers(ids, "ids");
    const py::ssize_t n = c.shape(0);
    if (i.ndim() > 1 || i.size() != n)
        throw py::value_error("ids must be one per code, but ids have shape " + shape_text(i) + " and codes " +
                              shape_text(c));
    for (py::ssize_t j = 0; j < n; ++j)
        if (i.data()[j] == -1)
            throw py::value_error("an id must not be -1, which marks a missing hit in results; use another id");
    if (n > py::ssize_t(UINT32_MAX / 2)) throw py::value_error("at most 2147483647 codes can be added at once");
    std::vector<uint8_t> r;
    if (!regions.is_none()) {
        Ids wide = integers(regions, "regions");
        if (wide.ndim() > 1 || wide.size() != n)
            throw py::value_error("regions must be one per code, but regions have shape " + shape_text(wide) +
                                  " and codes " + shape_text(c));
        r.resize(size_t(n));
        for (py::ssize_t j = 0; j < n; ++j) {
            if (wide.data()[j] < 0 || wide.data()[j] > 255)
                throw py::value_error("regions must be from 0 to 255, not " + std::to_string(wide.data()[j]));
            r[size_t(j)] = uint8_t(wide.data()[j]);
        }
    }
    const int64_t* id = i.data();
    const uint8_t* code = c.data();
    py::gil_scoped_release release;
    table.add(id, code, r.empty() ? nullptr : r.data(), size_t(n));
}

SearchResult search(const AnyTable& table, const py::object& codes, const py::object& k, const py::object& max_radius,
                    const py::object& max_buckets, const py::object& allowed, const std::string& strategy,
                    const py::object& threads) {
    constexpr int64_t most = int64_t(1) << 27;
    SearchOptions o = common_options(allowed, strategy, threads);
    o.k = uint64_t(integer(k, "k", 1, most));
    if (!max_radius.is_none()) o.max_radius = int(integer(max_radius, "max_radius", 0, kMaxBits, true));
    if (!max_buckets.is_none()) {  // a number above 2**63 - 1 means no limit
        auto limit = integer(max_buckets, "max_buckets", 0, INT64_MAX, true);
        if (limit < INT64_MAX || max_buckets.equal(py::int_(INT64_MAX))) o.max_buckets = uint64_t(limit);
    }
    Bytes c = packed_codes(codes, table.bits(), "codes");
    const py::ssize_t n = c.shape(0);
    if (n * int64_t(o.k) > most)
        throw py::value_error("k = " + std::to_string(o.k) + " for " + std::to_string(n) +
                              " queries makes more than 2**27 hits; pass fewer queries at a time or a smaller k, or "
                              "use within()");
    SearchResult r(n, py::ssize_t(o.k));
    SearchRows rows{r.ids.mutable_data(),    r.distances.mutable_data(), r.regions.mutable_data(),
                    r.counts.mutable_data(), r.buckets.mutable_data(),   r.candidates.mutable_data(),
                    r.radius.mutable_data(), r.exact.mutable_data()};
    const uint8_t* code = c.data();
    {
        py::gil_scoped_release release;
        table.search(code, size_t(n), o, rows);
    }
    return r;
}

RangeResult within(const AnyTable& table, const py::object& codes, const py::object& radius, const py::object& allowed,
                   const std::string& strategy, const py::object& threads, const py::object& max_hits) {
    SearchOptions o = common_options(allowed, strategy, threads);
    o.k = UINT64_MAX;
    o.max_hits = uint64_t(integer(max_hits, "max_hits", 0, INT64_MAX, true));
    o.max_radius = int(integer(radius, "radius", 0, kMaxBits, true));
    Bytes c = packed_codes(codes, table.bits(), "codes");
    const size_t n = size_t(c.shape(0));
    const uint8_t* code = c.data();
    std::vector<std::vector<RangeHit>> hits;
    size_t total = 0;
    {
        py::gil_scoped_release release;
        hits = table.within(code, n, o);
        for (auto& h : hits) total += h.size();
    }
    RangeResult r{py::ssize_t(n), py::ssize_t(total)};
    size_t at = 0;
    for (size_t q = 0; q < n; ++q) {
        r.lims.mutable_data()[q] = int64_t(at);
        for (const RangeHit& h : hits[q]) {
            r.ids.mutable_data()[at] = h.id;
            r.distances.mutable_data()[at] = h.distance;
            r.regions.mutable_data()[at++] = h.region;
        }
    }
    r.lims.mutable_data()[n] = int64_t(at);
    return r;
}

py::array_t<uint8_t> probe_masks(const py::object& bits_arg, const py::object& radius_arg,
                                 const py::object& limit_arg) {
    const int bits = bits_argument(bits_arg), radius = int(integer(radius_arg, "radius", 0, bits));
    constexpr int64_t most = int64_t(1) << 27;
    const auto all = Binomials::get().choose(bits, radius);
    int64_t limit = limit_arg.is_none() ? most + 1 : integer(limit_arg, "limit", 0, most);
    if (all < Binomials::Wide(limit)) limit = int64_t(all);
    if (limit > most) throw py::value_error("there are more than 2**27 masks of this radius; pass a limit");
    py::array_t<uint8_t> out({py::ssize_t(limit), py::ssize_t(bits / 8)});
    with_code_type(bits, [&](auto type) {
        using C = typename decltype(type)::type;
        uint8_t* at = out.mutable_data();
        uint8_t* end = at + limit * (bits / 8);
        if (at == end) return;
        for_each_flip(C{}, 0, LinearHash(bits), bits, radius, [&](const C& mask, uint32_t) {
            mask.store(at, bits / 8);
            return (at += bits / 8) < end;
        });
    });
    return out;
}

py::array_t<int64_t> bucket_ranks(const py::object& masks) {
    py::array a = as_array(masks, "masks");
    if (a.ndim() < 1 || a.shape(a.ndim() - 1) < 1 || a.shape(a.ndim() - 1) > kMaxBits / 8)
        throw py::value_error("masks must have 1 to 32 bytes per row, not shape " + shape_text(a));
    const int bits = int(a.shape(a.ndim() - 1)) * 8;
    Bytes m = packed_codes(masks, bits, "masks");
    py::array_t<int64_t> out(m.shape(0));
    with_code_type(bits, [&](auto type) {
        using C = typename decltype(type)::type;
        for (py::ssize_t i = 0; i < m.shape(0); ++i)
            out.mutable_data()[i] = int64_t(bucket_rank(C::load(m.data() + i * (bits / 8), bits / 8), bits));
    });
    return out;
}

// Raises one of the exceptions that mchindex/errors.py defines.
void raise(const char* name, const std::exception& e) {
    py::set_error(py::module_::import("mchindex.errors").attr(name), e.what());
}

}  // namespace

PYBIND11_MODULE(_core, m) {
    m.doc() = "The compiled engine of mchindex.";
    m.attr("__version__") = MCH_VERSION;
    bind_fine(m);

    py::register_exception_translator([](std::exception_ptr p) {
        try {
            if (p) std::rethrow_exception(p);
        } catch (const NotASnapshot& e) {
            raise("NotASnapshotError", e);
        } catch (const SnapshotVersion& e) {
            raise("SnapshotVersionError", e);
        } catch (const SnapshotDamaged& e) {
            raise("SnapshotDamagedError", e);
        } catch (const SnapshotError& e) {
            raise("SnapshotError", e);
        } catch (const std::system_error& e) {
            // what() is "path: reason". Python picks the subclass, such as FileNotFoundError, by errno.
            std::string path = e.what();
            path = path.substr(0, path.rfind(": "));
            errno = e.code().value();
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
        }
    });

    py::class_<SearchResult>(m, "SearchResult", "The result of `BucketTable.search`: one row per query.")
        .def_readonly("ids", &SearchResult::ids, "(q, k) int64: nearest image first; -1 where fewer than k were found.")
        .def_readonly("distances", &SearchResult::distances,
                      "(q, k) int32: Hamming distance of the image's nearest code; -1 as in `ids`.")
        .def_readonly("regions", &SearchResult::regions,
                      "(q, k) int16: region of the image's nearest code; -1 as in `ids`.")
        .def_readonly("counts", &SearchResult::counts, "(q,) int64: number of images found, at most k.")
        .def_readonly("buckets", &SearchResult::buckets,
                      "(q,) int64: number of buckets that Algorithm 1 visits, empty ones included; at most 2**63 - 1.")
        .def_readonly("radius", &SearchResult::radius, "(q,) int32: radius of the last bucket that Algorithm 1 visits.")
        .def_readonly("candidates", &SearchResult::candidates, "(q,) int64: number of stored codes in those buckets.")
        .def_readonly("exact", &SearchResult::exact,
                      "(q,) bool: False if max_radius or max_buckets kept images out of the answer.")
        .def("__len__", [](const SearchResult& r) { return r.counts.size(); })
        .def("__repr__", [](const SearchResult& r) {
            return "SearchResult(" + std::to_string(r.ids.shape(0)) + " queries, k=" + std::to_string(r.ids.shape(1)) +
                   ")";
        });

    py::class_<RangeResult>(m, "RangeResult",
                            "The result of `BucketTable.within`: the hits of query i are rows lims[i]:lims[i + 1].")
        .def_readonly("lims", &RangeResult::lims, "(q + 1,) int64: where the hits of each query start, and the end.")
        .def_readonly("ids", &RangeResult::ids, "(hits,) int64: the nearest image of each query first.")
        .def_readonly("distances", &RangeResult::distances,
                      "(hits,) int32: Hamming distance of the image's nearest code.")
        .def_readonly("regions", &RangeResult::regions, "(hits,) int16: region of the image's nearest code.")
        .def("__len__", [](const RangeResult& r) { return r.lims.size() - 1; })
        .def("__repr__", [](const RangeResult& r) {
            return "RangeResult(" + std::to_string(r.lims.size() - 1) + " queries, " + std::to_string(r.ids.size()) +
                   " hits)";
        });

    py::class_<AnyTable, std::shared_ptr<AnyTable>>(
        m, "BucketTable",
        "A table of hash buckets in which an image may have several codes.\n\n"
        "Codes are packed as np.packbits packs them; images are int64 ids. Searching while another\n"
        "thread adds or removes is safe: a search sees the table as it was at one moment.")
        .def(py::init([](const py::object& bits) { return make_table(bits_argument(bits)); }), py::arg("bits") = 64,
             "Create an empty table for codes of `bits` bits: a multiple of 8 from 8 to 256.")
        .def_property_readonly("bits", &AnyTable::bits, "Bits per code.")
        .def_property_readonly("n_codes", &AnyTable::n_codes, "Number of distinct (image, code) pairs.")
        .def_property_readonly("n_buckets",
                               py::cpp_function(&AnyTable::n_buckets, py::call_guard<py::gil_scoped_release>()),
                               "Number of distinct codes, that is, of occupied buckets.")
        .def("__len__", &AnyTable::n_images)
        .def(
            "__contains__",
            [](const AnyTable& t, const py::object& id) {
                if (!PyIndex_Check(id.ptr())) return false;
                auto number = py::reinterpret_steal<py::object>(PyNumber_Index(id.ptr()));
                if (!number && PyErr_ExceptionMatches(PyExc_TypeError)) {  // for example an array of several ids
                    PyErr_Clear();
                    return false;
                }
                if (!number) throw py::error_already_set();
                int overflow = 0;
                int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
                return !overflow && t.contains(value);
            },
            py::arg("id"))
        .def("__repr__",
             [](const AnyTable& t) {
                 return "BucketTable(bits=" + std::to_string(t.bits()) + ", " + std::to_string(t.n_images()) +
                        " images, " + std::to_string(t.n_codes()) + " codes)";
             })
        .def("add", &add, py::arg("ids"), py::arg("codes"), py::arg("regions") = py::none(),
             "Store codes[i] for the image ids[i], with an optional region number from 0 to 255.\n\n"
             "An id may occur in several rows and several calls. A repeated (id, code) pair is stored\n"
             "once, with the smallest of its regions. Raises TypeError or ValueError, and changes nothing,\n"
             "if an argument has the wrong type, shape or range.")
        .def(
            "remove",
            [](AnyTable& t, const py::object& ids) {
                auto list = id_list(ids, "ids");
                py::gil_scoped_release release;
                return t.remove(std::move(list));
            },
            py::arg("ids"),
            "Remove images with all their codes. Unknown ids are ignored. Return the number of images removed.")
        .def("search", &search, py::arg("codes"), py::arg("k") = 10, py::arg("max_radius") = py::none(),
             py::arg("max_buckets") = py::none(), py::arg("allowed") = py::none(), py::arg("strategy") = "auto",
             py::arg("threads") = 0,
             "Return the k nearest distinct images for each code, ordered by distance, then by the order\n"
             "in which Algorithm 1 visits buckets, then by id. An image counts once, at its nearest code.\n\n"
             "max_radius   return only images within this distance (inclusive)\n"
             "max_buckets  visit at most this many buckets, empty ones included\n"
             "allowed      return only images with these ids\n"
             "strategy     \"auto\", \"probe\", \"substring\" or \"scan\"; the answer is the same\n"
             "threads      number of threads to use; 0 means all cores")
        .def("within", &within, py::arg("codes"), py::arg("radius"), py::arg("allowed") = py::none(),
             py::arg("strategy") = "auto", py::arg("threads") = 0, py::arg("max_hits") = SearchOptions().max_hits,
             "Return all images within `radius` (inclusive) of each code, in the order of search().\n\n"
             "Raises ValueError if the queries have more than `max_hits` hits in all; the default of 2**26 takes\n"
             "about 2 GB.")
        .def("optimize", &AnyTable::optimize, py::arg("substring") = false, py::call_guard<py::gil_scoped_release>(),
             "Merge all changes into one segment now, instead of step by step in the background. With\n"
             "substring=True, also build the substring index. Answers stay the same.")
        .def("memory", &AnyTable::memory, "Return the bytes used by each kind of data, and their \"total\".")
        .def(
            "save",
            [](const AnyTable& t, const py::object& path) {
                auto p = file_path(path);
                py::gil_scoped_release release;
                t.save(p);
            },
            py::arg("path"),
            "Write the table to a file, replacing an existing one atomically. Raises OSError on failure.")
        .def_static(
            "load",
            [](const py::object& path, bool mmap) {
                auto p = file_path(path);
                py::gil_scoped_release release;
                return load_table(p, mmap);
            },
            py::arg("path"), py::arg("mmap") = false,
            "Read a table that save() wrote. With mmap=True, its arrays stay in the file and are mapped.\n\n"
            "Raises a SnapshotError if the file is not a table, is damaged or too new, and OSError if it\n"
            "cannot be read.");

    m.def("cpu_paths", &cpu_paths,
          "Return the names of the CPU paths (sets of inner loops) that this machine can run, fastest first.");
    m.def("cpu_path", &cpu_path, "Return the name of the CPU path in use.");
    m.def(
        "use_cpu_path",
        [](const std::string& name) {
            if (!use_cpu_path(name)) {
                std::string all;
                for (auto& p : cpu_paths()) all += (all.empty() ? "" : ", ") + p;
                throw py::value_error("there is no CPU path \"" + name + "\" on this machine; choose one of " + all);
            }
        },
        py::arg("name"), "Use another CPU path, in the whole process. For tests and measurements.");
    m.def("probe_masks", &probe_masks, py::arg("bits"), py::arg("radius"), py::arg("limit") = py::none(),
          "Return the packed XOR masks of exactly `radius` flips, in the order in which Algorithm 1 visits them;\n"
          "only the first `limit`, if given.");
    m.def("bucket_ranks", &bucket_ranks, py::arg("masks"),
          "Return the 1-based rank of the bucket at each packed XOR mask in the visiting order of Algorithm 1;\n"
          "at most 2**63 - 1.");
}
