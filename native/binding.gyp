# The two addons. kvpeer_region needs V8's own API (an ordinary mapping as a SharedArrayBuffer), so it is bound to one
# Node major version; kvpeer_core is plain Node-API. No -march: AVX2 is chosen per function at run time.
{
  "target_defaults": {
    "default_configuration": "Release",
    "include_dirs": ["."],
    "cflags": ["-fvisibility=hidden"],
    # Node's own headers cast function types; with -Wextra every file would repeat that warning.
    "cflags_cc": ["-Wno-cast-function-type"],
  },
  "targets": [
    {
      "target_name": "kvpeer_region",
      "sources": ["<!@(find region -name '*.cc' | sort)"],
    },
    {
      "target_name": "kvpeer_core",
      "sources": ["<!@(find core nixl zmq -name '*.cc' | sort)"],
      "defines": ["NAPI_VERSION=8"],
      "cflags_cc": ["-std=gnu++20"],
      "libraries": ["-ldl", "-lpthread"],
    },
  ],
}
