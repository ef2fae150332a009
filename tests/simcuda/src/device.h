// What the pretended device offers to its operators and, through ctypes, to Python.
#pragma once
#include <cstdint>

extern "C" {
// One kernel is launched on `stream`: the stream is busy for its cost from when it is free.
void sim_kernel(void* stream, const char* name, uint64_t bytes);
// The host waits for the stream, as CUDA's own version of the operator `name` does.
void sim_operator_waits(void* stream, const char* name);
// Whether the operator that begins now, one that asks for memory, is the one that shall find none.
int sim_memory_runs_out(void);

// Called on the waiting thread, before each wait of the host; `pending` unless there was nothing to wait for.
typedef void (*SimOnWait)(const char* what, double waited_us, int pending);
// Called for each use that a real device would punish, now or later.
typedef void (*SimOnFault)(const char* what);
void sim_on_wait(SimOnWait);
void sim_on_fault(SimOnFault);

// Settings and counts by name, see `settings()` in device.cpp; an unknown name reads as -1.
void sim_set(const char* name, double value);
double sim_get(const char* name);
}
