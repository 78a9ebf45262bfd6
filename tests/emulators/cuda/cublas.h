// The dynamic linker for the one library of NVIDIA's that our code opens at run time, cuBLAS, of which there is as much
// as it calls: products of matrices in columns, by plain loops, each sum in order. What the functions are given is
// checked: what the library refuses is a status, and what it does not notice is a std::logic_error.
#pragma once

namespace boost_ext::cuda::emulator {

// As dlopen: null unless the name is libcublas.so.13, or while there is none (see Pretended), or with RTLD_NOLOAD
// before somebody has opened it.
void* open_library(const char* name, int mode);
// As dlsym.
void* find_function(void* library, const char* name);

}  // namespace boost_ext::cuda::emulator
