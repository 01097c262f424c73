#!/bin/sh
# Which block sizes kernel/contract.h turns down, and for what reason, and which it takes.
#
#     CC='gcc -fsyntax-only ...' contract.sh avx2_f32 ...
#
# tries those of the instruction sets named.
set -u
available=" $* "
n_cases=0
n_wrong=0

# The kernel of isa/$1.h with other macros: "NAME value; ..."; without a value, it is taken
# away.
compile() {
    end=
    case $1 in avx*) end=isa/end.h ;; esac
    {
        printf '#include "isa/%s.h"\n' "$1"
        printf '%s\n' "$2" | tr ';' '\n' | while read -r name value; do
            [ -z "$name" ] || printf '#undef %s\n' "$name"
            [ -z "$value" ] || printf '#define %s %s\n' "$name" "$value"
        done
        printf '#include "%s"\n' kernel/kernel.h $end
    } | $CC -MF /dev/null - 2>&1
}

wrong() {
    n_wrong=$((n_wrong + 1))
    printf 'FAILED: %s\n%s\n' "$1" "$2" | head -n 20
}

is_available() {
    case $available in *" $1 "*) n_cases=$((n_cases + 1)) ;; *) false ;; esac
}

# takes ISA MACROS
takes() {
    is_available "$1" || return
    message=$(compile "$1" "$2") || wrong "$1 does not compile with $2" "$message"
}

# refuses ISA MACROS REASON, where the first error has to say why
refuses() {
    is_available "$1" || return
    if message=$(compile "$1" "$2"); then
        wrong "$1 compiles with $2" ""
        return
    fi
    printf '%s\n' "$message" | grep -m 1 error: | grep -q "$3" ||
        wrong "$1 with $2: the first error does not say \"$3\"" "$message"
}

for isa in "$@"; do
    takes "$isa" ""
done
takes avx512_f32 "PANEL_ROWS 6; TILE_VECTORS 4"
takes avx2_f64 "PANEL_ROWS 12"
takes scalar_f32 "PANEL_ROWS 1; TILE_VECTORS 64"

# multiply_rest drops rows of panels that are larger.
refuses scalar_f32 "PANEL_ROWS 14" "1 to 12 rows of a panel"
refuses avx512_f32 "PANEL_ROWS 14" "1 to 12 rows of a panel"
refuses scalar_f32 "PANEL_ROWS 0" "1 to 12 rows of a panel"
refuses scalar_f32 "PANEL_ROWS 5" "linear tasks are whole panels"
# Rows of row form are kept in arrays of a tile's width.
refuses scalar_f32 "TILE_VECTORS 4" "a tile holds all rows of row form"
refuses avx2_f64 "TILE_VECTORS 1" "a tile holds all rows of row form"
refuses neon_f64 "TILE_VECTORS 2" "a tile holds all rows of row form"
refuses scalar_f32 "TILE_VECTORS 0" "a tile has vectors"
refuses scalar_f32 "TILE_VECTORS 24" "a task is whole tiles"
refuses avx512_f32 "TILE_VECTORS 3" "a task is whole tiles"
refuses avx512_f32 "TILE_VECTORS 8" "a task is whole tiles"
refuses scalar_f32 "TERMS 3" "an operand is a real or a pair"
refuses scalar_f32 "TERMS 0" "an operand is a real or a pair"
refuses avx512_bf16_f32 "TERMS 3" "an operand is a real or a pair"
refuses scalar_f64 "TERMS 2" "pairs are summed in float"
refuses scalar_f32 "REAL_BITS 16" "real is float or double"
refuses scalar_f32 "REAL_BITS 64" "REAL_BITS are those of the vocabulary"
refuses avx2_f64 "REAL_BITS 32" "REAL_BITS are those of the vocabulary"
refuses scalar_f32 "LANES 0" "LANES is a power of two"
refuses scalar_f32 "LANES 3" "LANES is a power of two"
refuses scalar_f32 "LANES 16" "a vector is LANES reals"
refuses scalar_f32 "KERNEL" "KERNEL: the name of the kernel's table"
refuses scalar_f32 "PANEL_ROWS" "PANEL_ROWS"
refuses scalar_f32 "TILE_VECTORS" "TILE_VECTORS"
refuses scalar_f32 "REAL_BITS" "REAL_BITS"

echo "$n_cases kernels: $n_wrong not as the contract has them"
[ "$n_cases" -gt 0 ] && [ "$n_wrong" = 0 ]
