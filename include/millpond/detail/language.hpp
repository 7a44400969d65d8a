// The language that the public headers need, said in one line before the pages of errors that an
// older one makes. Each public header includes this one first.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "millpond needs C++20: -std=c++20, by GCC 11, Clang 16 or later"
#elif defined(__clang__) && !__has_builtin(__builtin_source_location)
#error "millpond needs std::source_location: Clang 16 or later, or GCC 11 or later"
#endif
