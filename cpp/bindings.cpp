// The Python module: classes, functions and their documentation.
#include <pybind11/critical_section.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <system_error>

#include "arguments.h"
#include "build_bindings.h"
#include "fine_bindings.h"
#include "mch/filter.h"
#include "mch/merge.h"
#include "mch/probe.h"
#include "mch/scan.h"
#include "mch/snapshot.h"
#include "mch/table.h"
#include "mch/workers.h"

using namespace mch;

namespace {

constexpr int64_t kMostHits = int64_t(1) << 27;  // of all queries of a search, as many as are asked for

SearchOptions common_options(const py::object& allowed, const py::object& strategy, const py::object& threads) {
    SearchOptions o;
    o.allowed = filter_argument(allowed);
    o.strategy = strategy_argument(strategy);
    o.threads = int(integer(threads, "threads", 0, Workers::most, true));
    return o;
}

// Memory that the columns of one result share. Making NumPy arrays takes longer than a search in a small
// table, so a column of a small result becomes one only when somebody looks at it.
class Block {
  public:
    explicit Block(size_t bytes) : memory_(new uint64_t[(bytes + 7) / 8]) {}
    template <class T>
    T* take(size_t n) {  // columns with the largest elements first, so that all are aligned
        auto* at = reinterpret_cast<uint8_t*>(memory_.get()) + used_;
        used_ += n * sizeof(T);
        return reinterpret_cast<T*>(at);
    }
    // An object that keeps the memory as long as it lives.
    py::capsule owner() const {
        return py::capsule(new Memory(memory_), [](void* memory) { delete static_cast<Memory*>(memory); });
    }

  private:
    using Memory = std::shared_ptr<uint64_t[]>;
    Memory memory_;
    size_t used_ = 0;
};

template <class T>
class Column {
  public:
    Column(Block* block, std::initializer_list<py::ssize_t> shape) {
        std::copy(shape.begin(), shape.end(), shape_);
        n_dims_ = shape.size();
        if (block) {
            data_ = block->take<T>(size_t(shape_[0] * shape_[1]));
        } else {
            py::array_t<T> made(shape);
            data_ = made.mutable_data();
            array_ = std::move(made);
        }
    }
    T* data() { return data_; }
    const py::object& array(const Block& block) {
        if (!array_) {
            py::array_t<T> made(std::vector<py::ssize_t>(shape_, shape_ + n_dims_), data_, block.owner());
            if (!array_) array_ = std::move(made);  // another thread may have been faster
        }
        return array_;
    }

  private:
    py::ssize_t shape_[2] = {1, 1};
    size_t n_dims_;
    T* data_;
    py::object array_;
};

struct SearchResult {
    static constexpr py::ssize_t small = 4096;  // hits; a larger result has memory of its own for each column
    py::ssize_t n, k;
    Block block;
    Column<int64_t> ids, counts, buckets, candidates;
    Column<int32_t> distances, radius;
    Column<int16_t> regions;
    Column<bool> exact;
    py::object masks = py::none();

    SearchResult(py::ssize_t n, py::ssize_t k) : SearchResult(n, k, n * k <= small && n <= small) {}

    SearchRows rows(uint8_t* mask) {
        return {ids.data(),        distances.data(), regions.data(), counts.data(), buckets.data(),
                candidates.data(), radius.data(),    exact.data(),   mask};
    }

  private:
    SearchResult(py::ssize_t n, py::ssize_t k, bool shared)
        : n(n),
          k(k),
          block(shared ? size_t(n * k) * (8 + 4 + 2) + size_t(n) * (3 * 8 + 4 + 1) : 0),
          ids(shared ? &block : nullptr, {n, k}),
          counts(shared ? &block : nullptr, {n}),
          buckets(shared ? &block : nullptr, {n}),
          candidates(shared ? &block : nullptr, {n}),
          distances(shared ? &block : nullptr, {n, k}),
          radius(shared ? &block : nullptr, {n}),
          regions(shared ? &block : nullptr, {n, k}),
          exact(shared ? &block : nullptr, {n}) {}
};

// The property that returns a column as a NumPy array, the same one each time.
template <class T>
auto column(Column<T> SearchResult::* which) {
    return [which](const py::object& self) {
        py::scoped_critical_section lock(self);
        auto& result = self.cast<SearchResult&>();
        return (result.*which).array(result.block);
    };
}

struct RangeResult {
    py::array_t<int64_t> lims, ids;
    py::array_t<int32_t> distances;
    py::array_t<int16_t> regions;

    RangeResult(py::ssize_t n, py::ssize_t hits) : lims(n + 1), ids(hits), distances(hits), regions(hits) {}
};

void add(AnyTable& table, const py::object& ids, const py::object& codes, const py::object& regions) {
    const RowArguments rows = rows_argument(ids, codes, regions, table.bits());
    py::gil_scoped_release release;
    table.add(rows.ids.data(), rows.codes.data(), rows.regions.empty() ? nullptr : rows.regions.data(), rows.size());
}

std::unique_ptr<SearchResult> search(const AnyTable& table, const py::object& codes, const py::object& k,
                                     const py::object& max_radius, const py::object& max_buckets,
                                     const py::object& allowed, const py::object& strategy, const py::object& threads,
                                     bool masks) {
    SearchOptions o = common_options(allowed, strategy, threads);
    o.k = uint64_t(integer(k, "k", 1, kMostHits));
    if (!max_radius.is_none()) o.max_radius = int(integer(max_radius, "max_radius", 0, kMaxBits, true));
    if (!max_buckets.is_none()) {  // a number above 2**63 - 1 means no limit
        auto limit = integer(max_buckets, "max_buckets", 0, INT64_MAX, true);
        if (limit < INT64_MAX || max_buckets.equal(py::int_(INT64_MAX))) o.max_buckets = uint64_t(limit);
    }
    Codes c = packed_codes(codes, table.bits(), "codes");
    const py::ssize_t n = c.size();
    if (n * int64_t(o.k) > kMostHits)
        throw py::value_error("k = " + std::to_string(o.k) + " for " + std::to_string(n) +
                              " queries makes more than 2**27 hits; pass fewer queries at a time or a smaller k, or "
                              "use within()");
    auto r = std::make_unique<SearchResult>(n, py::ssize_t(o.k));
    uint8_t* mask = nullptr;
    if (masks) {
        py::array_t<uint8_t> made({n, py::ssize_t(o.k), py::ssize_t(table.bits() / 8)});
        mask = made.mutable_data();
        r->masks = std::move(made);
    }
    const SearchRows rows = r->rows(mask);
    const uint8_t* code = c.data();
    {
        py::gil_scoped_release release;
        table.search(code, size_t(n), o, rows);
    }
    return r;
}

py::bytes pack_answers(SearchResult& result) {
    if (result.masks.is_none()) throw py::value_error("only a result with masks can be packed");
    auto masks = result.masks.cast<py::array_t<uint8_t>>();
    const SearchRows rows = result.rows(masks.mutable_data());
    const PackedHeader header = packed_header(rows, size_t(result.n), size_t(masks.shape(2)));
    auto made = py::reinterpret_steal<py::bytes>(PyBytes_FromStringAndSize(nullptr, py::ssize_t(packed_size(header))));
    if (!made) throw py::error_already_set();
    pack(rows, size_t(result.k), header, reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(made.ptr())));
    return made;
}

std::unique_ptr<SearchResult> merge_answers(const std::vector<py::bytes>& packed, const py::object& k) {
    std::vector<PackedAnswers> parts;
    for (const py::bytes& one : packed)
        parts.emplace_back(reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(one.ptr())),
                           size_t(PyBytes_GET_SIZE(one.ptr())));
    if (parts.empty()) throw py::value_error("there must be at least one part");
    const size_t n = parts[0].queries();
    for (const PackedAnswers& part : parts)
        if (part.queries() != n || part.width() != parts[0].width())
            throw py::value_error("all parts must answer the same queries");
    int64_t most = 0;
    if (k.is_none()) {
        for (size_t q = 0; q < n; ++q) {
            uint64_t hits = 1;
            for (const PackedAnswers& part : parts) hits += part.row(q).hits;
            most = std::max(most, int64_t(hits));
        }
    } else {
        most = integer(k, "k", 1, kMostHits);
    }
    if (n && most > kMostHits / int64_t(n)) throw py::value_error("that makes more than 2**27 hits");
    auto r = std::make_unique<SearchResult>(py::ssize_t(n), py::ssize_t(most));
    merge(parts, uint64_t(most), r->rows(nullptr));
    return r;
}

RangeResult within(const AnyTable& table, const py::object& codes, const py::object& radius, const py::object& allowed,
                   const py::object& strategy, const py::object& threads, const py::object& max_hits) {
    SearchOptions o = common_options(allowed, strategy, threads);
    o.k = UINT64_MAX;
    o.max_hits = uint64_t(integer(max_hits, "max_hits", 0, INT64_MAX, true));
    o.max_radius = int(integer(radius, "radius", 0, kMaxBits, true));
    Codes c = packed_codes(codes, table.bits(), "codes");
    const size_t n = size_t(c.size());
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
        for_each_flip(C{}, 0, LinearHash(bits, 0), bits, radius, [&](const C& mask, uint32_t) {
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
    Codes m = packed_codes(masks, bits, "masks");
    py::array_t<int64_t> out(m.size());
    with_code_type(bits, [&](auto type) {
        using C = typename decltype(type)::type;
        for (py::ssize_t i = 0; i < m.size(); ++i)
            out.mutable_data()[i] = int64_t(bucket_rank(C::load(m.data() + i * (bits / 8), bits / 8), bits));
    });
    return out;
}

py::dict stats(const AnyTable& table) {
    TableStats s;
    std::map<std::string, uint64_t> memory;
    uint64_t buckets;
    {
        py::gil_scoped_release release;
        s = table.stats();
        memory = table.memory();
        buckets = table.n_buckets();
    }
    py::list segments;
    for (const auto& p : s.parts) {
        py::dict one;
        one["images"] = p.images;
        one["codes"] = p.codes;
        one["buckets"] = p.buckets;
        one["groups"] = p.groups;
        one["removed"] = p.removed;
        one["substring"] = p.substring;
        segments.append(one);
    }
    py::dict out;
    out["images"] = s.images;
    out["codes"] = s.codes;
    out["buckets"] = buckets;
    out["segments"] = segments;
    out["memory"] = memory;
    out["answered"] = s.answered;
    out["large_buckets_counted"] = s.large_buckets_counted;
    out["buckets_collected"] = s.buckets_collected;
    out["merging"] = s.merging;
    out["indexing"] = s.indexing;
    out["cpu_path"] = cpu_path();
    return out;
}

// Raises one of the exceptions that mchindex/errors.py defines.
void raise(const char* name, const std::exception& e) {
    py::set_error(py::module_::import("mchindex.errors").attr(name), e.what());
}

}  // namespace

// Nothing here relies on the GIL: tables and filters have locks of their own, and a result makes its arrays in a
// critical section.
PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
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
        .def_property_readonly("ids", column(&SearchResult::ids),
                               "(q, k) int64: nearest image first; -1 where fewer than k were found.")
        .def_property_readonly("distances", column(&SearchResult::distances),
                               "(q, k) int32: Hamming distance of the image's nearest code; -1 as in `ids`.")
        .def_property_readonly("regions", column(&SearchResult::regions),
                               "(q, k) int16: region of the image's nearest code; -1 as in `ids`.")
        .def_property_readonly("counts", column(&SearchResult::counts),
                               "(q,) int64: number of images found, at most k.")
        .def_property_readonly(
            "buckets", column(&SearchResult::buckets),
            "(q,) int64: number of buckets that Algorithm 1 visits, empty ones included; at most 2**63 - 1.")
        .def_property_readonly("radius", column(&SearchResult::radius),
                               "(q,) int32: radius of the last bucket that Algorithm 1 visits.")
        .def_property_readonly("candidates", column(&SearchResult::candidates),
                               "(q,) int64: number of stored codes in those buckets.")
        .def_property_readonly("exact", column(&SearchResult::exact),
                               "(q,) bool: False if max_radius or max_buckets kept images out of the answer.")
        .def_readonly("masks", &SearchResult::masks,
                      "(q, k, bits // 8) uint8: the query's code XOR the image's nearest code; zeros where fewer\n"
                      "than k were found. None unless asked for.")
        .def("pack", &pack_answers,
             "Return the answers as bytes, for `merge` in a process on a machine of the same byte order. They need\n"
             "masks.")
        .def_static("merge", &merge_answers, py::arg("parts"), py::arg("k") = py::none(),
                    "Return the answers that one table with the images of several would give.\n\n"
                    "Args:\n"
                    "    parts: What `pack` returned for each table. No image is in two of them.\n"
                    "    k: The number of images that each table was asked for; None: all that were found, and one\n"
                    "        row without.\n\n"
                    "Returns:\n"
                    "    The first k of each query. `candidates` are those of all tables.\n\n"
                    "Raises:\n"
                    "    ValueError: The parts are not packed answers to the same queries.")
        .def("__len__", [](const SearchResult& r) { return r.n; })
        .def("__repr__", [](const SearchResult& r) {
            return "SearchResult(" + std::to_string(r.n) + " queries, k=" + std::to_string(r.k) + ")";
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

    py::class_<Filter, std::shared_ptr<Filter>>(
        m, "Filter",
        "A set of images that searches may return, made by `BucketTable.filter`.\n\n"
        "Any number of threads may use it at the same time, also while others change the table.")
        .def("__len__", [](const Filter& f) { return f.ids().size(); })
        .def(
            "__contains__",
            [](const Filter& f, const py::object& id) {
                const auto value = id_or_none(id);
                return value && f.contains(*value);
            },
            py::arg("id"))
        .def("__repr__", [](const Filter& f) { return "Filter(" + std::to_string(f.ids().size()) + " ids)"; });

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
                const auto value = id_or_none(id);
                return value && t.contains(*value);
            },
            py::arg("id"))
        .def("__repr__",
             [](const AnyTable& t) {
                 return "BucketTable(bits=" + std::to_string(t.bits()) + ", " + std::to_string(t.n_images()) +
                        " images, " + std::to_string(t.n_codes()) + " codes)";
             })
        .def("add", &add, py::arg("ids"), py::arg("codes"), py::arg("regions") = py::none(),
             "Store codes[i] for the image ids[i].\n\n"
             "An id may occur in several rows and several calls. A repeated (id, code) pair is stored once,\n"
             "with the smallest of its regions.\n\n"
             "Args:\n"
             "    ids: (n,) int64, any but -1.\n"
             "    codes: (n, bits // 8) uint8, packed as np.packbits packs them.\n"
             "    regions: (n,) numbers from 0 to 255; their meaning is up to you.\n\n"
             "Raises:\n"
             "    TypeError: An argument has the wrong type; nothing is added.\n"
             "    ValueError: An argument has the wrong shape or range; nothing is added.")
        .def(
            "remove",
            [](AnyTable& t, const py::object& ids) {
                auto list = id_list(ids, "ids");
                py::gil_scoped_release release;
                return t.remove(std::move(list));
            },
            py::arg("ids"),
            "Remove images with all their codes.\n\n"
            "Args:\n"
            "    ids: The images. Unknown ids are ignored.\n\n"
            "Returns:\n"
            "    The number of images removed.")
        .def(
            "filter",
            [](const AnyTable&, const py::object& ids) { return std::make_shared<Filter>(id_list(ids, "ids"), true); },
            py::arg("ids"),
            "Return a filter that allows these images, for the `allowed` of many searches.\n\n"
            "It finds them in the table once, and again in what changes.\n\n"
            "Args:\n"
            "    ids: The images. Those that are added later count, too.\n\n"
            "Returns:\n"
            "    The filter.")
        .def("search", &search, py::arg("codes"), py::arg("k") = 10, py::arg("max_radius") = py::none(),
             py::arg("max_buckets") = py::none(), py::arg("allowed") = py::none(), py::arg("strategy") = "auto",
             py::arg("threads") = 0, py::arg("masks") = false,
             "Return the k nearest distinct images for each code, ordered by distance, then by the order\n"
             "in which Algorithm 1 visits buckets, then by id. An image counts once, at its nearest code.\n\n"
             "Args:\n"
             "    codes: (q, bits // 8) uint8, packed as np.packbits packs them.\n"
             "    k: The number of images to find.\n"
             "    max_radius: Return only images within this distance (inclusive).\n"
             "    max_buckets: Visit at most this many buckets, empty ones included.\n"
             "    allowed: Return only images with these ids: a list, or a filter made by filter().\n"
             "    strategy: \"auto\", \"probe\", \"substring\" or \"scan\"; the answer is the same.\n"
             "    threads: The number of threads to use; 0 means all cores.\n"
             "    masks: Whether the result has the XOR masks of the hits' codes.\n\n"
             "Returns:\n"
             "    The hits of each code, and the work that each search took.\n\n"
             "Raises:\n"
             "    TypeError: An argument has the wrong type.\n"
             "    ValueError: An argument has the wrong shape or range, or k times q is above 2**27.")
        .def("within", &within, py::arg("codes"), py::arg("radius"), py::arg("allowed") = py::none(),
             py::arg("strategy") = "auto", py::arg("threads") = 0, py::arg("max_hits") = SearchOptions().max_hits,
             "Return all images within `radius` (inclusive) of each code, in the order of search().\n\n"
             "Args:\n"
             "    codes: (q, bits // 8) uint8.\n"
             "    radius: The largest distance.\n"
             "    allowed: As for search().\n"
             "    strategy: As for search().\n"
             "    threads: As for search().\n"
             "    max_hits: The largest number of hits of all codes together; the default of 2**26 takes about\n"
             "        2 GB.\n\n"
             "Returns:\n"
             "    The hits of all codes, one after the other.\n\n"
             "Raises:\n"
             "    ValueError: An argument is wrong, or there are more than `max_hits` hits.")
        .def("optimize", &AnyTable::optimize, py::arg("substring") = false, py::call_guard<py::gil_scoped_release>(),
             "Merge all changes into one segment now, instead of step by step in the background. Answers\n"
             "stay the same.\n\n"
             "Args:\n"
             "    substring: Whether to build the substring index, too.")
        .def("memory", &AnyTable::memory, "Return the bytes used by each kind of data, and their \"total\".")
        .def("stats", &stats,
             "Return what the table consists of and what it has done: images, codes, buckets, its segments, the\n"
             "bytes of memory(), the number of queries that each strategy has answered since the table was made,\n"
             "whether a merge or the building of a substring index is running, and the CPU path.")
        .def(
            "save",
            [](const AnyTable& t, const py::object& path) {
                auto p = file_path(path);
                py::gil_scoped_release release;
                t.save(p);
            },
            py::arg("path"),
            "Write the table to a file, replacing an existing one atomically.\n\n"
            "Args:\n"
            "    path: The file.\n\n"
            "Raises:\n"
            "    OSError: It cannot be written.")
        .def_static(
            "load",
            [](const py::object& path, bool mmap, bool verify) {
                auto p = file_path(path);
                py::gil_scoped_release release;
                return load_table(p, mmap, verify);
            },
            py::arg("path"), py::arg("mmap") = false, py::arg("verify") = true,
            "Read a table that save() or build() wrote.\n\n"
            "Args:\n"
            "    path: The file.\n"
            "    mmap: Whether its arrays stay in the file and are mapped.\n"
            "    verify: Whether to check their content. False only for files that nobody else could have\n"
            "        changed.\n\n"
            "Returns:\n"
            "    The table.\n\n"
            "Raises:\n"
            "    SnapshotError: The file is not a table, is damaged or too new.\n"
            "    OSError: It cannot be read.")
        .def_static("build", &build_table, py::arg("path"), py::arg("chunks"), py::arg("bits") = 64, py::kw_only(),
                    py::arg("layout") = "auto", py::arg("memory") = uint64_t(1) << 30, py::arg("resume") = true,
                    py::arg("progress") = py::none(), kBuildDoc);

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
