/* Turns off what an isa header turned on. */
#if defined(__clang__)
#pragma clang attribute pop
#endif
