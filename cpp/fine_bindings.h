// Adds the class of the fine codes to the Python module.
#pragma once

#include <pybind11/pybind11.h>

namespace mch {

void bind_fine(pybind11::module_& m);

}  // namespace mch
