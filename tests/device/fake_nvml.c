/* A small NVML for tests: the calls that amptui makes, with faults on demand.
 *
 * Environment, read anew at every call, so that a test may change it while its program runs:
 *   FAKE_NVML_GPUS     how many GPUs there are (2)
 *   FAKE_NVML_MIG      "1": GPU 0 is split into two MIG instances, in slots 0 and 2 of 7
 *   FAKE_NVML_REASONS  bit mask of clocks event reasons (0)
 *   FAKE_NVML_ENERGY   millijoules since the driver was loaded (7200000500)
 *   FAKE_NVML_LOG      a file that gets a line for each call: its name, and the GPU it was made for
 *   FAKE_NVML_FAULTS   "call[@gpu]=code,...": what a call answers instead, the first match winning.
 *                      `call` is a symbol's name, or * for all but start and end; `gpu` is 0, 1, ... or
 *                      0.2 for a MIG instance; `code` is an nvmlReturn_t, or `hang`. When it begins with
 *                      a slash it is the name of a file that holds the faults.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, VERSION_MISMATCH = 25 };
enum { MAX_GPUS = 8, MIG_SLOTS = 7 };

typedef struct {
    int gpu;
    int slot; /* -1: a whole GPU */
} Device;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

typedef struct {
    unsigned int gpu, memory;
} Utilization;

static Device devices[MAX_GPUS][MIG_SLOTS + 1];

static const unsigned long long MIB = 1ULL << 20;

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static void write_label(const Device *device, char *label, size_t size)
{
    if (!device)
        snprintf(label, size, "-");
    else if (device->slot < 0)
        snprintf(label, size, "%d", device->gpu);
    else
        snprintf(label, size, "%d.%d", device->gpu, device->slot);
}

static void log_call(const char *call, const char *label)
{
    const char *path = getenv("FAKE_NVML_LOG");
    FILE *file = path && *path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s %s\n", call, label);
    fclose(file);
}

static void read_faults(char *faults, size_t size)
{
    const char *text = getenv("FAKE_NVML_FAULTS");
    snprintf(faults, size, "%s", text ? text : "");
    if (faults[0] != '/')
        return;
    FILE *file = fopen(faults, "r");
    size_t length = file ? fread(faults, 1, size - 1, file) : 0;
    faults[length] = 0;
    if (file)
        fclose(file);
}

static int matches(const char *pattern, const char *call, const char *label)
{
    char name[128];
    snprintf(name, sizeof name, "%s", pattern);
    char *at = strchr(name, '@');
    if (at) {
        *at = 0;
        if (strcmp(at + 1, label))
            return 0;
    }
    if (!strcmp(name, "*"))
        return strcmp(call, "nvmlInitWithFlags") && strcmp(call, "nvmlShutdown");
    return !strcmp(name, call);
}

/* What the call should answer instead of its value, or SUCCESS. */
static int fault(const char *call, const Device *device)
{
    char faults[4096], label[16], *rest = NULL;
    write_label(device, label, sizeof label);
    log_call(call, label);
    read_faults(faults, sizeof faults);
    for (char *item = strtok_r(faults, ", \n", &rest); item; item = strtok_r(NULL, ", \n", &rest)) {
        char *code = strchr(item, '=');
        if (!code)
            abort(); /* a test's mistake */
        *code++ = 0;
        if (!matches(item, call, label))
            continue;
        while (!strcmp(code, "hang"))
            pause();
        return atoi(code);
    }
    return SUCCESS;
}

#define FAULT(device)                                                                                         \
    do {                                                                                                      \
        int code = fault(__func__, device);                                                                   \
        if (code)                                                                                             \
            return code;                                                                                      \
    } while (0)

int nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    FAULT(NULL);
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int slot = -1; slot < MIG_SLOTS; slot++)
            devices[gpu][slot + 1] = (Device){gpu, slot};
    return SUCCESS;
}

int nvmlShutdown(void)
{
    FAULT(NULL);
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    static char text[64];
    snprintf(text, sizeof text, "error %d of the fake", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    FAULT(NULL);
    *count = (unsigned int)setting("FAKE_NVML_GPUS", 2);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **device)
{
    if (index >= (unsigned int)setting("FAKE_NVML_GPUS", 2) || index >= MAX_GPUS)
        return INVALID_ARGUMENT;
    FAULT(&devices[index][0]);
    *device = &devices[index][0];
    return SUCCESS;
}

static void write_uuid(const Device *device, char *uuid, size_t size)
{
    snprintf(uuid, size, "%s-00000000-0000-0000-%04x-%012x", device->slot < 0 ? "GPU" : "MIG", device->slot + 1,
             device->gpu);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device)
{
    for (int gpu = 0; gpu < MAX_GPUS; gpu++)
        for (int place = 0; place <= MIG_SLOTS; place++) {
            char own[80];
            write_uuid(&devices[gpu][place], own, sizeof own);
            if (strcmp(own, uuid))
                continue;
            FAULT(&devices[gpu][place]);
            *device = &devices[gpu][place];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(const Device *device, char *uuid, unsigned int size)
{
    FAULT(device);
    write_uuid(device, uuid, size);
    return SUCCESS;
}

int nvmlDeviceGetName(const Device *device, char *name, unsigned int size)
{
    FAULT(device);
    snprintf(name, size, device->slot < 0 ? "Fake GPU" : "Fake GPU MIG 1g.2gb");
    return SUCCESS;
}

/* GPU n uses n+1 GiB of 16, and the driver keeps 512 MiB of it for itself. */
static MemoryV2 memory_of(const Device *device)
{
    MemoryV2 memory = {.total = (device->slot < 0 ? 16384 : 2048) * MIB, .reserved = 512 * MIB};
    memory.used = device->slot < 0 ? (unsigned long long)(device->gpu + 1) * 1024 * MIB : 256 * MIB;
    memory.free = memory.total - memory.reserved - memory.used;
    return memory;
}

int nvmlDeviceGetUtilizationRates(const Device *device, Utilization *rates)
{
    FAULT(device);
    if (device->slot >= 0)
        return NOT_SUPPORTED;
    *rates = (Utilization){93, 41};
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(const Device *device, unsigned int *milliwatts)
{
    FAULT(device);
    if (device->slot >= 0)
        return NOT_SUPPORTED;
    *milliwatts = 412500;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(const Device *device, unsigned long long *millijoules)
{
    FAULT(device);
    if (device->slot >= 0)
        return NOT_SUPPORTED;
    *millijoules = (unsigned long long)setting("FAKE_NVML_ENERGY", 7200000500);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(const Device *device, unsigned int sensor, unsigned int *celsius)
{
    FAULT(device);
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *celsius = 54;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(const Device *device, unsigned int type, unsigned int *megahertz)
{
    FAULT(device);
    if (type != 1) /* SM */
        return INVALID_ARGUMENT;
    *megahertz = 1980;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const Device *device, unsigned long long *reasons)
{
    FAULT(device);
    *reasons = (unsigned long long)setting("FAKE_NVML_REASONS", 0);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(const Device *device, MemoryV2 *answer)
{
    FAULT(device);
    if (answer->version != (sizeof *answer | 2 << 24))
        return VERSION_MISMATCH;
    unsigned int version = answer->version;
    *answer = memory_of(device);
    answer->version = version;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(const Device *device, unsigned int *current, unsigned int *pending)
{
    FAULT(device);
    if (device->gpu != 0)
        return NOT_SUPPORTED;
    *current = *pending = (unsigned int)setting("FAKE_NVML_MIG", 0);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(const Device *device, unsigned int *count)
{
    FAULT(device);
    *count = MIG_SLOTS;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const Device *device, unsigned int slot, Device **instance)
{
    FAULT(device);
    if (slot != 0 && slot != 2)
        return NOT_FOUND;
    *instance = &devices[device->gpu][slot + 1];
    return SUCCESS;
}
