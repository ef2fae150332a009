// Asked for by CUDA's headers, which here need nothing of it: no kernel is compiled.
#pragma once
