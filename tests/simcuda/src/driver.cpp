// The pretended libcuda.so.1: what torch asks the driver itself, of a machine whose contexts are all alive.
#include <cuda.h>

extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = (CUcontext)1;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = (CUcontext)1;
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "pretended";
  return CUDA_SUCCESS;
}
}

// The rest is there to be found, and refuses: CUDA_ERROR_NOT_SUPPORTED.
#define MISSING(name)                                                                \
  extern "C" __attribute__((visibility("default"))) int missing_##name() asm(#name); \
  int missing_##name() { return 801; }
MISSING(cuFuncGetAttribute)
MISSING(cuFuncSetAttribute)
MISSING(cuFuncSetCacheConfig)
MISSING(cuLaunchCooperativeKernel)
MISSING(cuLaunchKernel)
MISSING(cuLinkAddData_v2)
MISSING(cuLinkComplete)
MISSING(cuLinkCreate_v2)
MISSING(cuModuleGetFunction)
MISSING(cuModuleLoad)
MISSING(cuModuleLoadData)
MISSING(cuModuleLoadDataEx)
MISSING(cuModuleUnload)
MISSING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
MISSING(cuPointerGetAttribute)
MISSING(cuTensorMapEncodeTiled)
MISSING(cuMemGetAddressRange_v2)
