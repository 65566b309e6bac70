// The stack of the last exception. A C++ exception does not carry it, so the function that throws is wrapped: the wrapper notes the stack,
// then calls the original.
#include "trace.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <array>
#include <cstdlib>
#include <memory>

namespace udo::detail {

namespace {

// Deeper stacks lose their outermost functions, which are main and this SDK's.
constexpr int MOST_FRAMES = 64;
thread_local std::array<void*, MOST_FRAMES> frames;
thread_local int count = 0;

}  // namespace

std::string demangled(const char* name) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> plain(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
    return status == 0 ? plain.get() : name;
}

std::string trace() {
    std::string text;
    for (int n = 1; n < count; n++) {  // skips note() below
        const auto* at = static_cast<const char*>(frames[static_cast<std::size_t>(n)]);
        Dl_info found{};
        if (!dladdr(at, &found)) continue;
        // A function in an anonymous namespace has no name here; addr2line finds it by its offset.
        text += "  at " + (found.dli_sname ? demangled(found.dli_sname) : std::string("?"));
        text += std::string(" (") + found.dli_fname + " + " + std::to_string(at - static_cast<const char*>(found.dli_fbase)) + ")\n";
    }
    return text.empty() ? "  thrown in another thread, or in a library that keeps no trace\n" : text;
}

void forget_trace() { count = 0; }

static void note() noexcept { count = backtrace(frames.data(), MOST_FRAMES); }

}  // namespace udo::detail

extern "C" [[noreturn]] void __cxa_throw(void* thrown, void* type, void (*destructor)(void*)) {
    using Throw = void (*)(void*, void*, void (*)(void*));
    static const auto next = reinterpret_cast<Throw>(dlsym(RTLD_NEXT, "__cxa_throw"));
    udo::detail::note();
    next(thrown, type, destructor);
    std::abort();  // not reached
}
