// Checks and conversion of what Python callers pass. Each function raises a TypeError or ValueError
// that names the argument.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mch/code.h"
#include "mch/filter.h"
#include "mch/options.h"

namespace mch {

namespace py = pybind11;

// Arrays that are contiguous, aligned and in the machine's byte order, converted if need be.
constexpr int kPlain = py::array::c_style | py::array::forcecast | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
using Bytes = py::array_t<uint8_t, kPlain>;
using Ids = py::array_t<int64_t, kPlain>;

inline std::string type_name(const py::handle& x) { return py::str(py::type::of(x).attr("__name__")); }
inline std::string shape_text(const py::array& a) { return py::str(a.attr("shape")); }

// Whether x is an array and not of a subclass, such as a masked array.
inline bool is_plain_array(const py::object& x) { return Py_TYPE(x.ptr()) == py::detail::npy_api::get().PyArray_Type_; }

inline py::array as_array(const py::object& x, const char* name) {
    if (is_plain_array(x)) return py::reinterpret_borrow<py::array>(x);
    if (py::hasattr(x, "mask") && py::hasattr(x, "filled"))
        throw py::type_error(std::string(name) +
                             " is a masked array, which is not supported; pass its compressed() or filled(value)");
    if (py::isinstance<py::array>(x)) return py::reinterpret_borrow<py::array>(x);
    py::object asarray = py::module_::import("numpy").attr("asarray");
    return py::array(PyAnySet_Check(x.ptr()) ? asarray(py::list(x)) : asarray(x));
}

// An integer from `low` to `high`. With `clamp`, a larger one counts as `high`.
inline int64_t integer(const py::object& x, const char* name, int64_t low, int64_t high, bool clamp = false) {
    auto number = py::reinterpret_steal<py::object>(PyNumber_Index(x.ptr()));
    if (!number) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
        PyErr_Clear();
        throw py::type_error(std::string(name) + " must be an integer, not " + type_name(x));
    }
    int overflow = 0;
    int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (clamp && (overflow > 0 || value > high)) return high;
    if (overflow || value < low || value > high) {
        std::string range =
            clamp ? "at least " + std::to_string(low) : "from " + std::to_string(low) + " to " + std::to_string(high);
        throw py::value_error(std::string(name) + " must be " + range + ", not " + std::string(py::str(number)));
    }
    return value;
}

inline int bits_argument(const py::object& x) {
    int64_t bits = integer(x, "bits, a multiple of 8,", 8, kMaxBits);
    if (bits % 8) throw py::value_error("bits must be a multiple of 8 from 8 to 256, not " + std::to_string(bits));
    return int(bits);
}

// Integers of any type and shape, as int64.
inline Ids integers(const py::object& x, const char* name) {
    py::array a = as_array(x, name);
    const char kind = a.dtype().kind();
    if (a.size() == 0) return Ids(std::vector<py::ssize_t>(size_t(a.ndim()), 0));
    if (kind != 'i' && kind != 'u')
        throw py::type_error(std::string(name) + " must be integers, not " + std::string(py::str(a.dtype())));
    if (kind == 'u' && a.itemsize() == 8) {
        auto wide = py::array_t<uint64_t, kPlain>(a);
        for (py::ssize_t i = 0; i < wide.size(); ++i)
            if (wide.data()[i] > uint64_t(INT64_MAX))
                throw py::value_error(std::string(name) + " must fit into int64, but one is " +
                                      std::to_string(wide.data()[i]));
    }
    return Ids(a);
}

inline std::vector<int64_t> id_list(const py::object& x, const char* name) {
    Ids a = integers(x, name);
    if (a.ndim() > 1)
        throw py::value_error(std::string(name) + " must be one-dimensional, not of shape " + shape_text(a));
    return {a.data(), a.data() + a.size()};
}

// The number that `x in ids` looks for, or none if x cannot be an id.
inline std::optional<int64_t> id_or_none(const py::object& x) {
    if (!PyIndex_Check(x.ptr())) return {};
    auto number = py::reinterpret_steal<py::object>(PyNumber_Index(x.ptr()));
    if (!number && PyErr_ExceptionMatches(PyExc_TypeError)) {  // for example an array of several ids
        PyErr_Clear();
        return {};
    }
    if (!number) throw py::error_already_set();
    int overflow = 0;
    int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (overflow) return {};
    return value;
}

// A Filter or a list of ids; None allows all images.
inline std::shared_ptr<const Filter> filter_argument(const py::object& allowed) {
    if (allowed.is_none()) return nullptr;
    if (py::isinstance<Filter>(allowed)) return allowed.cast<std::shared_ptr<Filter>>();
    return std::make_shared<Filter>(id_list(allowed, "allowed"), false);
}

// Packed codes, one per row.
class Codes {
  public:
    Codes() = default;
    Codes(Bytes bytes, py::ssize_t n) : bytes_(std::move(bytes)), n_(n) {}
    py::ssize_t size() const { return n_; }
    const uint8_t* data() const { return bytes_.data(); }
    std::string shape() const { return shape_text(bytes_); }

  private:
    Bytes bytes_;
    py::ssize_t n_ = 0;
};

// A single code may be one-dimensional.
inline Codes packed_codes(const py::object& x, int bits, const char* name) {
    const py::ssize_t width = bits / 8;
    auto want = [&] {
        return "a uint8 array of shape (n, " + std::to_string(width) + "), as np.packbits(bits, axis=1) returns it";
    };
    py::array a = as_array(x, name);
    if (a.dtype().num() != py::detail::npy_api::NPY_UBYTE_) {
        const char kind = a.dtype().kind();
        const bool listed = !py::isinstance<py::array>(x) && !py::hasattr(x, "dtype");
        if (listed && a.size() == 0 && a.ndim() == 1) return {};
        if (!listed || (kind != 'i' && kind != 'u'))
            throw py::type_error(std::string(name) + " must be " + want() + ", not " + std::string(py::str(a.dtype())));
        auto wide = Ids(a);
        for (py::ssize_t i = 0; i < wide.size(); ++i)
            if (wide.data()[i] < 0 || wide.data()[i] > 255)
                throw py::value_error(std::string(name) + " must be bytes from 0 to 255, not " +
                                      std::to_string(wide.data()[i]));
    }
    if ((a.ndim() == 2 && a.shape(1) == bits) || (a.ndim() == 1 && a.shape(0) == bits && bits > 8))
        throw py::value_error(std::string(name) + " has shape " + shape_text(a) +
                              ", one column per bit; pack the bits first: np.packbits(" + name + ", axis=-1)");
    if ((a.ndim() != 2 || a.shape(1) != width) && (a.ndim() != 1 || a.shape(0) != width))
        throw py::value_error(std::string(name) + " has shape " + shape_text(a) + "; for " + std::to_string(bits) +
                              " bits it must be " + want());
    const py::ssize_t n = a.ndim() == 2 ? a.shape(0) : 1;
    return {Bytes::check_(a) ? py::reinterpret_borrow<Bytes>(a) : Bytes(a), n};
}

// Rows of a table: one id and one packed code each, and perhaps a region.
struct RowArguments {
    Ids ids;
    Codes codes;
    std::vector<uint8_t> regions;  // empty: all 0
    size_t size() const { return size_t(codes.size()); }
};

inline RowArguments rows_argument(const py::object& ids, const py::object& codes, const py::object& regions, int bits) {
    Codes c = packed_codes(codes, bits, "codes");
    Ids i = integers(ids, "ids");
    const py::ssize_t n = c.size();
    if (i.ndim() > 1 || i.size() != n)
        throw py::value_error("ids must be one per code, but ids have shape " + shape_text(i) + " and codes " +
                              c.shape());
    for (py::ssize_t j = 0; j < n; ++j)
        if (i.data()[j] == -1)
            throw py::value_error("an id must not be -1, which marks a missing hit in results; use another id");
    if (n > py::ssize_t(UINT32_MAX / 2)) throw py::value_error("at most 2147483647 codes can be added at once");
    std::vector<uint8_t> r;
    if (!regions.is_none()) {
        Ids wide = integers(regions, "regions");
        if (wide.ndim() > 1 || wide.size() != n)
            throw py::value_error("regions must be one per code, but regions have shape " + shape_text(wide) +
                                  " and codes " + c.shape());
        r.resize(size_t(n));
        for (py::ssize_t j = 0; j < n; ++j) {
            if (wide.data()[j] < 0 || wide.data()[j] > 255)
                throw py::value_error("regions must be from 0 to 255, not " + std::to_string(wide.data()[j]));
            r[size_t(j)] = uint8_t(wide.data()[j]);
        }
    }
    return {std::move(i), std::move(c), std::move(r)};
}

inline Strategy strategy_argument(const py::object& name) {
    if (!PyUnicode_Check(name.ptr())) throw py::type_error("strategy must be a string, not " + type_name(name));
    auto is = [&](const char* text) { return PyUnicode_CompareWithASCIIString(name.ptr(), text) == 0; };
    if (is("auto")) return Strategy::automatic;
    if (is("probe")) return Strategy::probe;
    if (is("substring")) return Strategy::substring;
    if (is("scan")) return Strategy::scan;
    throw py::value_error("strategy must be \"auto\", \"probe\", \"substring\" or \"scan\", not " +
                          std::string(py::repr(name)));
}

inline std::string file_path(const py::object& path) {
    std::string p = py::bytes(py::module_::import("os").attr("fsencode")(path));
    if (p.find('\0') != std::string::npos) throw py::value_error("the path contains a null character");
    return p;
}

}  // namespace mch
