/* Turns off what an isa header of x86-64 turned on. */
#if defined(__clang__) && defined(__x86_64__)
#pragma clang attribute pop
#endif
