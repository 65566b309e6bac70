// The stack of the last exception.
#pragma once

#include <string>
#include <typeinfo>

namespace udo::detail {

// The names of its functions; of this thread's last exception.
std::string trace();
std::string demangled(const char* name);

}  // namespace udo::detail
