// What the pretended devices say of themselves, their errors and settings, and kernels that nobody pretends.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "state.h"

namespace sim {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) { return last_error = error; }

}  // namespace sim

using namespace sim;

namespace {

// All that Python reads and writes by name.
double* number(const char* name) {
  auto& m = machine();
  const std::pair<const char*, double*> settings[] = {
      {"kernel_us", &m.kernel_us},      // how long an operator takes on the device, besides its bytes
      {"copy_us", &m.copy_us},          // the same for a copy
      {"bytes_per_us", &m.bytes_per_us},
      {"memory_mib", &m.memory_mib},    // a device's memory
      {"poison", &m.poison},            // whether memory that nobody wrote holds NaN
      {"queue_depth", &m.queue_depth},  // operators under way at most: further launches block
      {"failing_mallocs", &m.failing_mallocs},          // how many next ones fail
      {"failing_host_allocs", &m.failing_host_allocs},  // the same for pinned memory
      {"broken", &m.broken},                // the cudaError that every call returns from now on; 0: none
      {"memory_out_in", &m.memory_out_in},  // which operator from now on, of those that ask for memory, finds none
      // Counts.
      {"kernels", &m.kernels_launched}, {"copies", &m.copies}, {"waits", &m.waits}, {"faults", &m.faults},
      {"queue_full", &m.queue_full}};
  for (auto& [known, value] : settings)
    if (!strcmp(known, name)) return value;
  return nullptr;
}

int capability(int which) {
  static int parts[2] = {-1, 0};
  if (parts[0] < 0) {
    const char* text = getenv("SIMCUDA_CAPABILITY");
    sscanf(text ? text : "8.6", "%d.%d", &parts[0], &parts[1]);
  }
  return parts[which];
}

struct Launch {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local std::vector<Launch> launches;

cudaError_t not_pretended(const void* host) {
  auto found = machine().kernels.find(host);
  fault("a kernel that is not pretended: " + (found == machine().kernels.end() ? std::string("?") : found->second));
  return fail(cudaErrorNotSupported);
}

}  // namespace

extern "C" {

// ---- for the operators and for Python

void sim_on_wait(SimOnWait f) { machine().on_wait = f; }
void sim_on_fault(SimOnFault f) { machine().on_fault = f; }

int sim_memory_runs_out(void) {
  auto& m = machine();
  std::lock_guard<std::mutex> lock(m.mutex);
  return m.memory_out_in > 0 && --m.memory_out_in == 0;
}

void sim_set(const char* name, double value) {
  if (double* n = number(name)) *n = value;
}

double sim_get(const char* name) {
  if (double* n = number(name)) return *n;
  if (!strcmp(name, "used_mib")) return machine().used[current_device] / 1048576.0;
  if (!strcmp(name, "pending_us")) return std::max<Nanoseconds>(everything() - now(), 0) / 1000.0;
  return -1;
}

// ---- the devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine().devices) return fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
cudaError_t cudaGetLastError(void) {
  auto error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  snprintf(id, length, "00000000:%02x:00.0", 1 + device);
  return cudaSuccess;
}
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  memset(p, 0, sizeof *p);
  const char* name = getenv("SIMCUDA_NAME");
  snprintf(p->name, sizeof p->name, "%s", name ? name : "Pretended GPU");
  p->major = capability(0);
  p->minor = capability(1);
  p->totalGlobalMem = size_t(machine().memory_mib) << 20;
  p->multiProcessorCount = 28;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 1536;
  p->sharedMemPerBlock = p->sharedMemPerBlockOptin = 49152;
  p->sharedMemPerMultiprocessor = 102400;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->l2CacheSize = 4 << 20;
  p->memoryBusWidth = 192;
  p->unifiedAddressing = p->concurrentKernels = p->managedMemory = 1;
  p->pciBusID = 1 + device;
  p->uuid.bytes[15] = char(device);  // as the tests' NVML names its GPUs
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, 0);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrClockRate: *value = 1700000; break;
    case cudaDevAttrMemoryClockRate: *value = 7000000; break;
    default: *value = 1;
  }
  return cudaSuccess;
}

// ---- torch's own kernels: registered at its import, and never to be reached

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  machine().kernels.emplace(host, name);
}
// `kernel<<<grid, block, shared, stream>>>(...)` pushes what stands in the brackets; its stub pops it.
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  launches.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  auto& launch = launches.back();
  *grid = launch.grid;
  *block = launch.block;
  *shared = launch.shared;
  *static_cast<void**>(stream) = launch.stream;
  launches.pop_back();
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = (cudaKernel_t)host;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* host, dim3, dim3, void** arguments, size_t, cudaStream_t s) {
  auto found = machine().kernels.find(host);
  if (found != machine().kernels.end() && found->second.find("spin_kernel") != std::string::npos) {  // torch.cuda._sleep
    std::lock_guard<std::mutex> lock(machine().mutex);
    occupy(stream_of(s), *(int64_t*)arguments[0] / 1700.0);  // cycles at 1.7 GHz
    return cudaSuccess;
  }
  return not_pretended(host);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t s) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* host, void**) { return not_pretended(host); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* host) { return not_pretended(host); }
cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute, int) { return not_pretended(host); }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, const void* host, int, size_t) { return not_pretended(host); }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int*, const void* host, int, size_t, unsigned) {
  return not_pretended(host);
}

// The driver's functions come from the pretended libcuda beside this library.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  *function = driver ? dlsym(driver, name) : nullptr;
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
}
