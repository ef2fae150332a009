/* A small libcuda.so.1 for tests: a driver that answers as the environment says, and has no GPU.
 *
 *   FAKE_CUDA_VERSION  what cuDriverGetVersion tells, 1000 x major + 10 x minor (13020)
 *   FAKE_CUDA_INIT     what cuInit answers, a CUresult (100: no device)
 */
#include <stdlib.h>

static int setting(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

int cuDriverGetVersion(int *version)
{
    *version = setting("FAKE_CUDA_VERSION", 13020);
    return 0;
}

int cuInit(unsigned int flags)
{
    (void)flags;
    return setting("FAKE_CUDA_INIT", 100);
}
