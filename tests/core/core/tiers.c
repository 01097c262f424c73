/* The table of tiers. */
#include "core/tiers.h"

#include "support/check.h"

#include <string.h>

/* Every tier there is, best first. */
static const char *const names[] = {"amx_bf16",     "avx512_bf16", "avx512_vnni",
                                    "avx512",       "avx_vnni",    "avx2",
                                    "neon_dotprod", "neon",        "scalar"};

void
test_tiers_are_listed_best_first(void)
{
    const attn_tier *tier;
    size_t next = 0;
    int n_tiers = 0;

    for (; (tier = attn_tier_at(n_tiers)) != NULL; n_tiers++) {
        while (next < sizeof names / sizeof names[0] &&
               strcmp(names[next], tier->name) != 0) {
            next++;
        }
        expect(next < sizeof names / sizeof names[0], "%s is out of order", tier->name);
        expect(tier->supported(), "%s is listed, but not supported", tier->name);
        expect(attn_tier_named(tier->name) == tier, "%s is not found", tier->name);
        note("%s", tier->name);
    }
    expect(n_tiers > 0, "there is no tier");
    expect(attn_tier_at(n_tiers + 1) == NULL, "there is a tier past the last one");
    expect(attn_tier_named("scalar") == attn_tier_at(n_tiers - 1),
           "scalar is not last");
    expect(attn_tier_named("nonsense") == NULL, "there is a tier \"nonsense\"");
    expect(attn_tier_named("") == NULL, "there is a tier without a name");
}
