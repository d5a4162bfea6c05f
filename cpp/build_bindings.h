// BucketTable.build, for the Python module.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace mch {

void build_table(const pybind11::object& path, const pybind11::object& chunks, const pybind11::object& bits,
                 const std::string& layout, const pybind11::object& memory, bool resume,
                 const pybind11::object& progress);

extern const char* const kBuildDoc;

}  // namespace mch
