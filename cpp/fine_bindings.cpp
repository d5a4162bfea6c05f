// The Python class of the fine codes.
#include "fine_bindings.h"

#include <pybind11/stl.h>

#include <cmath>

#include "arguments.h"
#include "mch/fine.h"
#include "mch/workers.h"

namespace mch {
namespace {

using Floats = py::array_t<float, kPlain>;

struct RankResult {
    py::array_t<int64_t> keys, looked_at;
    py::array_t<float> scores, similarities;
    py::array_t<int32_t> distances;
    py::array_t<int16_t> regions;

    RankResult(py::ssize_t n, py::ssize_t k)
        : keys({n, k}), looked_at(n), scores({n, k}), similarities({n, k}), distances({n, k}), regions({n, k}) {}
};

int multiple_of_8(const py::object& x, const char* name, int most) {
    const int bits = int(integer(x, name, 8, most));
    if (bits % 8) throw py::value_error(std::string(name) + " must be a multiple of 8, not " + std::to_string(bits));
    return bits;
}

std::unique_ptr<FineTable> make(const py::object& bits, const py::object& fine_bits, const py::object& regions,
                                const py::object& cells) {
    const int b = bits_argument(bits), f = multiple_of_8(fine_bits, "fine_bits", FineTable::kMostBits),
              r = int(integer(regions, "regions", 1, FineTable::kMostRegions));
    if (cells.is_none()) return std::make_unique<FineTable>(b, f, r, nullptr, 0);
    Codes c = packed_codes(cells, f, "cells");
    if (c.size() > FineTable::kMostCells) throw py::value_error("there may be 65536 cells at most");
    return std::make_unique<FineTable>(b, f, r, c.data(), size_t(c.size()));
}

void add(FineTable& table, const py::object& keys, const py::object& fine, const py::object& counts,
         const py::object& codes, const py::object& cells) {
    Ids k = integers(keys, "keys"), count = integers(counts, "counts");
    const py::array given = as_array(fine, "fine");
    if (!py::isinstance<py::array_t<uint8_t>>(given)) throw py::type_error("fine must be a uint8 array");
    Bytes f = Bytes(given);
    Codes c = packed_codes(codes, table.bits(), "codes");
    const py::ssize_t n = k.size(), width = table.fine_bits() / 8;
    if (k.ndim() != 1 || count.ndim() != 1 || count.size() != n || f.ndim() != 3 || f.shape(0) != n ||
        f.shape(1) != table.regions() || f.shape(2) != width)
        throw py::value_error("fine must have the shape (keys, " + std::to_string(table.regions()) + ", " +
                              std::to_string(width) + "), and counts one number per key");
    std::vector<uint32_t> starts(size_t(n) + 1, 0);
    int64_t sum = 0;
    for (py::ssize_t i = 0; i < n; ++i) {
        if (count.data()[i] < 0 || (sum += count.data()[i]) > int64_t(c.size()))
            throw py::value_error("counts must add up to the number of codes");
        starts[size_t(i) + 1] = uint32_t(sum);
    }
    if (sum != int64_t(c.size())) throw py::value_error("counts must add up to the number of codes");
    py::array_t<uint16_t, kPlain> cell;
    if (!cells.is_none()) {
        const Ids numbers = integers(cells, "cells");
        if (numbers.size() != n * table.regions()) throw py::value_error("cells must be one per fine code");
        cell = py::array_t<uint16_t, kPlain>(numbers.size());
        for (py::ssize_t i = 0; i < numbers.size(); ++i) {
            if (numbers.data()[i] < 0 || numbers.data()[i] >= FineTable::kMostCells)
                throw py::value_error("there is no such cell");
            cell.mutable_data()[i] = uint16_t(numbers.data()[i]);
        }
    }
    const uint16_t* known = cells.is_none() ? nullptr : cell.data();
    py::gil_scoped_release release;
    table.add(k.data(), size_t(n), f.data(), starts.data(), c.data(), known);
}

template <class T>
py::array as_numpy(const std::vector<T>& values, std::vector<py::ssize_t> shape) {
    py::array_t<T> out(std::move(shape));
    std::copy(values.begin(), values.end(), out.mutable_data());
    return out;
}

py::dict content(const FineTable& table) {
    FineTable::Content c;
    {
        py::gil_scoped_release release;
        c = table.content();
    }
    const auto n = py::ssize_t(c.keys.size()), r = py::ssize_t(table.regions()), width = py::ssize_t(table.bits() / 8);
    py::dict out;
    out["keys"] = as_numpy(c.keys, {n});
    out["fine"] = as_numpy(c.fine, {n, r, py::ssize_t(table.fine_bits() / 8)});
    out["counts"] = as_numpy(c.counts, {n});
    out["codes"] = as_numpy(c.codes, {py::ssize_t(c.codes.size()) / width, width});
    if (table.n_cells())
        out["cells"] = as_numpy(c.cells, {n, r});
    else
        out["cells"] = py::none();
    return out;
}

Floats queries_argument(const FineTable& table, const py::object& queries) {
    Floats q = Floats(as_array(queries, "queries"));
    if (q.ndim() != 2 || q.shape(1) != table.fine_bits())
        throw py::value_error("queries must have the shape (n, " + std::to_string(table.fine_bits()) + "), not " +
                              shape_text(q));
    for (py::ssize_t i = 0; i < q.size(); ++i)
        if (!std::isfinite(q.data()[i])) throw py::value_error("queries must be finite numbers");
    return q;
}

py::array_t<uint32_t> near_costs(const FineTable& table, const py::object& queries, const py::object& near,
                                 const py::object& probes, const py::object& allowed, const py::object& threads) {
    constexpr int64_t most = int64_t(1) << 27;
    Floats q = queries_argument(table, queries);
    const py::ssize_t n = q.shape(0);
    RankOptions o;
    o.near = uint64_t(integer(near, "near", 1, most));
    o.probes = uint32_t(integer(probes, "probes", 0, INT32_MAX, true));
    o.threads = int(integer(threads, "threads", 0, Workers::most, true));
    if (n * int64_t(o.near) > most) throw py::value_error("more than 2**27 costs: pass fewer queries at a time");
    const auto only = filter_argument(allowed);
    py::array_t<uint32_t> out({n, py::ssize_t(o.near)});
    uint32_t* to = out.mutable_data();
    {
        py::gil_scoped_release release;
        table.near_costs(q.data(), size_t(n), only.get(), o, to);
    }
    return out;
}

RankResult rank(const FineTable& table, const py::object& queries, const py::object& k, const py::object& codes,
                const std::array<float, 4>& weights, const py::object& candidates, const py::object& near,
                const py::object& probes, const py::object& allowed, const py::object& threads,
                const py::object& near_costs) {
    constexpr int64_t most = int64_t(1) << 27;
    Floats q = queries_argument(table, queries);
    const py::ssize_t n = q.shape(0);
    RankOptions o;
    o.k = uint64_t(integer(k, "k", 1, most));
    for (float weight : weights)
        if (!std::isfinite(weight)) throw py::value_error("weights must be finite numbers");
    o.weights = {weights[0], weights[1], weights[2], weights[3]};
    o.near = uint64_t(integer(near, "near", 0, most));
    o.probes = uint32_t(integer(probes, "probes", 0, INT32_MAX, true));
    o.threads = int(integer(threads, "threads", 0, Workers::most, true));
    if (n * int64_t(o.k) > most) throw py::value_error("more than 2**27 hits: pass fewer queries at a time");
    Codes c;
    if (!codes.is_none()) {
        c = packed_codes(codes, table.bits(), "codes");
        if (c.size() != n) throw py::value_error("codes must be one per query");
    }
    Ids lims, keys;
    if (!candidates.is_none()) {
        auto pair = candidates.cast<std::pair<py::object, py::object>>();
        lims = integers(pair.first, "candidates[0]");
        keys = integers(pair.second, "candidates[1]");
        bool fits = lims.ndim() == 1 && lims.size() == n + 1 && keys.ndim() == 1 && lims.data()[0] >= 0 &&
                    lims.data()[n] <= keys.size();
        for (py::ssize_t i = 0; fits && i < n; ++i) fits = lims.data()[i] <= lims.data()[i + 1];
        if (!fits) throw py::value_error("candidates must be limits (queries + 1,) and keys, as `within` returns them");
    }
    py::array_t<uint32_t> costs;
    if (!near_costs.is_none()) {
        const Ids given = integers(near_costs, "near_costs");
        if (given.ndim() != 1 || given.size() != n) throw py::value_error("near_costs must be one per query");
        costs = py::array_t<uint32_t>(n);
        for (py::ssize_t i = 0; i < n; ++i) {
            if (given.data()[i] < 0 || given.data()[i] > int64_t(UINT32_MAX))
                throw py::value_error("near_costs must be from 0 to 2**32 - 1");
            costs.mutable_data()[i] = uint32_t(given.data()[i]);
        }
        o.near_costs = costs.data();
    }
    const auto only = filter_argument(allowed);
    RankResult r(n, py::ssize_t(o.k));
    RankRows rows{r.keys.mutable_data(),      r.scores.mutable_data(),  r.similarities.mutable_data(),
                  r.distances.mutable_data(), r.regions.mutable_data(), r.looked_at.mutable_data()};
    const uint8_t* code = codes.is_none() ? nullptr : c.data();
    const int64_t* limits = candidates.is_none() ? nullptr : lims.data();
    py::gil_scoped_release release;
    table.rank(code, q.data(), size_t(n), limits, keys.data(), only.get(), o, rows);
    return r;
}

}  // namespace

void bind_fine(py::module_& m) {
    py::class_<RankResult>(m, "RankResult", "The result of `FineTable.rank`: one row per query.")
        .def_readonly("keys", &RankResult::keys, "(q, k) int64: best image first; -1 where fewer than k were found.")
        .def_readonly("scores", &RankResult::scores, "(q, k) float32.")
        .def_readonly("similarities", &RankResult::similarities,
                      "(q, k) float32: similarity of the image's most similar fine code, -1 to 1.")
        .def_readonly("regions", &RankResult::regions, "(q, k) int16: the region of that fine code.")
        .def_readonly("distances", &RankResult::distances,
                      "(q, k) int32: Hamming distance of the image's nearest code; -1 without codes.")
        .def_readonly("looked_at", &RankResult::looked_at, "(q,) int64: how many images were scored.");

    py::class_<FineTable>(m, "FineTable",
                          "The fine codes of images, one per region, by which images are ranked.\n\n"
                          "Any number of threads may use a table at the same time.")
        .def(py::init(&make), py::arg("bits"), py::arg("fine_bits"), py::arg("regions"), py::arg("cells") = py::none(),
             "Create an empty table. `bits` is the width of the bucket table's codes, `regions` the number of\n"
             "fine codes per image. `cells` (n, fine_bits // 8) are codes around which fine codes are grouped,\n"
             "so that `rank` finds near ones without looking at all.")
        .def_property_readonly("bits", &FineTable::bits, "Bits per code of the bucket table.")
        .def_property_readonly("fine_bits", &FineTable::fine_bits, "Bits per fine code.")
        .def_property_readonly("regions", &FineTable::regions, "Fine codes per image.")
        .def_property_readonly("n_cells", &FineTable::n_cells, "Number of cells.")
        .def("__len__", &FineTable::size)
        .def("memory", &FineTable::bytes, "Bytes of memory in use.")
        .def("add", &add, py::arg("keys"), py::arg("fine"), py::arg("counts"), py::arg("codes"),
             py::arg("cells") = py::none(),
             "Add images: keys (n,), 0 or more, ascending and above all earlier ones, fine codes (n,\n"
             "regions, fine_bits // 8), and for each image the number of its codes in the bucket table, and those "
             "codes.\n"
             "`cells` (n, regions) are the cells of the fine codes, if they are known.")
        .def("content", &content, "Return everything in the table, as keyword arguments of `add`.")
        .def(
            "remove",
            [](FineTable& t, const py::object& keys) {
                auto list = id_list(keys, "keys");
                py::gil_scoped_release release;
                return t.remove(list.data(), list.size());
            },
            py::arg("keys"), "Remove images. Unknown keys are ignored. Return the number of images removed.")
        .def("rank", &rank, py::arg("queries"), py::arg("k") = 10, py::arg("codes") = py::none(),
             py::arg("weights") = std::array<float, 4>{0, 0, 1, 0}, py::arg("candidates") = py::none(),
             py::arg("near") = 0, py::arg("probes") = 0, py::arg("allowed") = py::none(), py::arg("threads") = 0,
             py::arg("near_costs") = py::none(),
             "Return the k images with the largest scores for each query: queries (n, fine_bits), real\n"
             "numbers whose signs are the expected bits and whose magnitudes say how much each bit counts.\n\n"
             "codes       (n, bits // 8) the queries' codes, for the distance of the nearest code\n"
             "weights     of the code, the whole image, the most similar region, and its fourth power\n"
             "candidates  limits and keys, as `BucketTable.within` returns them; None looks at all images\n"
             "near        how many images to add to the candidates by their fine codes alone\n"
             "probes      in how many cells to look for those\n"
             "allowed     return only images with these keys: a list, or a filter of a BucketTable\n"
             "threads     number of threads to use; 0 means all cores\n"
             "near_costs  (n,) instead of `near`: the largest cost of the fine codes to add, see `near_costs`")
        .def("near_costs", &near_costs, py::arg("queries"), py::arg("near"), py::arg("probes"),
             py::arg("allowed") = py::none(), py::arg("threads") = 0,
             "Return the costs of the `near` fine codes that `rank` would add for each query, (n, near) uint32,\n"
             "ascending; 2**32 - 1 where there are fewer. From the costs of several tables follows what one table of\n"
             "all their images would add.")
        .def(
            "read",
            [](const FineTable& t, const py::object& keys) {
                auto list = id_list(keys, "keys");
                py::array_t<uint8_t> out(
                    {py::ssize_t(list.size()), py::ssize_t(t.regions()), py::ssize_t(t.fine_bits() / 8)});
                if (!t.read(list.data(), list.size(), out.mutable_data())) throw py::key_error("no such image");
                return out;
            },
            py::arg("keys"), "Return the fine codes of images, (n, regions, fine_bits // 8). Raises KeyError.");
}

}  // namespace mch
