// Where the last exception was thrown.
#pragma once

#include <string>
#include <typeinfo>

namespace udo::detail {

// As the functions' names; of this thread.
std::string trace();
std::string demangled(const char* name);

}  // namespace udo::detail
